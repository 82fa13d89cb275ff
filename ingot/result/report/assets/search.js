// Search by any part of name, op, module or source line; arrow keys and Enter select.
function searchBox(data, onPick) {
  const MOST = 60,
    list = el("ul", { class: "hits", role: "listbox", hidden: "" });
  let hits = [],
    at = 0;
  const texts = data.nodes.map((n) => `${n.name} ${n.op} ${n.module} ${n.source}`.toLowerCase());
  const choose = (i) => {
    if (i !== undefined) {
      list.hidden = true;
      onPick(i);
    }
  };
  const mark = () => [...list.children].forEach((li, k) => li.setAttribute("aria-selected", k === at));
  const input = el("input", {
    type: "search",
    id: "search",
    placeholder: "search name, op, module, file:line",
    autocomplete: "off",
    spellcheck: "false",
    "aria-label": "search the graph",
    oninput: () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      const found = words.length
        ? data.nodes.map((_, i) => i).filter((i) => words.every((w) => texts[i].includes(w)))
        : [];
      const exact = (i) => (data.nodes[i].name === input.value.trim() ? 0 : 1);
      hits = found.sort((a, b) => exact(a) - exact(b) || a - b).slice(0, MOST);
      at = 0;
      list.hidden = !words.length;
      const more =
        found.length > hits.length
          ? [el("li", { class: "none" }, `and ${FORMATS.count(found.length - hits.length)} more`)]
          : [];
      list.replaceChildren(
        ...(hits.length
          ? hits.map((i) =>
              el(
                "li",
                {
                  role: "option",
                  onpointerdown: (e) => {
                    e.preventDefault();
                    choose(i);
                  },
                },
                name(data.nodes[i].name),
                el("small", {}, ` ${data.nodes[i].op} \u00b7 ${data.nodes[i].source}`),
              ),
            )
          : [el("li", { class: "none" }, "no match")]),
        ...more,
      );
      mark();
    },
    onkeydown: (e) => {
      if (e.key === "Enter") choose(hits[at]);
      else if (e.key === "Escape") list.hidden = true;
      else if (e.key === "ArrowDown" || e.key === "ArrowUp") {
        at = Math.max(0, Math.min(hits.length - 1, at + (e.key === "ArrowDown" ? 1 : -1)));
        mark();
        list.children[at]?.scrollIntoView({ block: "nearest" });
        e.preventDefault();
      }
    },
    onblur: () => {
      list.hidden = true;
    },
  });
  return el("span", { class: "search" }, input, list);
}
