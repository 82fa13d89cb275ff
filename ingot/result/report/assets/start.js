const facts = JSON.parse(document.getElementById("data").textContent);
(facts.sides ? comparison : report)(facts);
document.body.dataset.ready = "true";
