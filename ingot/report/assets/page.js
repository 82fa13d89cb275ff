// The page of one casting: sections in the order in which questions come.
function report(data) {
  const main = document.querySelector("main");
  const graph = data.nodes.length ? graphSection(data) : null;
  const show = graph ? graph.show : null;
  const parts = [tiles(data), outputsSection(data), graph?.section ?? section("graph", "Graph", el("p", { class: "none" }, "no graph is kept with this casting")),
    hostSection(data, show), errorSection(data, show), sizeSection(data, show), timeSection(data), recordedSection(data, show),
    delegatesSection(data), ioSection(data), rewritesSection(data), notesSection(data), versionsSection(data)];
  main.append(...parts);
  document.querySelector("nav").append(...parts.filter((p) => p.id).map((p) => el("a", { href: `#${p.id}` }, p.querySelector("h2").textContent)));
  if (graph) graph.start();
}

function tiles(data) {
  const tile = (label, value, more) => el("div", { class: "tile" }, el("div", { class: "tile-label" }, label), el("div", { class: "tile-value" }, value), more ? el("div", { class: "tile-more" }, more) : null);
  const check = data.check, outputs = check?.outputs ?? [];
  const worst = outputs.reduce((at, o, i) => (at < 0 || number(o.sqnr_db) < number(outputs[at].sqnr_db) ? i : at), -1);
  const made = [tile("delegates", figure(data, "delegates.length", "count"), [...new Set(data.delegates.map((d) => d.backend))].join(", ")),
    tile("host ops", figure(data, "host_ops.length", "count"), data.host_ops.length ? "each with its reason below" : "nothing left behind"),
    tile("bytes", figure(data, "bytes", "count"), "of the program file")];
  if (worst >= 0) made.push(tile(outputs.length > 1 ? "worst output" : "output", figure(data, `check.outputs.${worst}.sqnr_db`, "db"), name(outputs[worst].name)));
  const time = timeOf(data);
  if (time) made.push(tile(time.label, figure(data, time.path, "ms"), time.more));
  made.push(tile("executed on", check ? el("span", { class: "words" }, figure(data, "check.executed_on")) : NONE, check ? el("span", {}, figure(data, "check.batches", "count"), check.batches === 1 ? " batch" : " batches") : "not executed"));
  return el("div", { class: "tiles" }, ...made);
}

function timeOf(data) {
  if (data.timing?.seconds) return { label: "a run", path: "timing.seconds", more: "on the machine of the cast" };
  const estimates = data.performance.filter((p) => p.seconds);
  return estimates.length === 1 ? { label: "a run", path: `performance.${data.performance.indexOf(estimates[0])}.seconds`, more: `estimate of ${estimates[0].compiler}` } : null;
}

function outputsSection(data) {
  if (!data.check) return section("outputs", "Outputs", el("p", { class: "none" }, "the artefact was not executed"));
  const rows = data.check.outputs.map((o, i) => {
    const at = `check.outputs.${i}`;
    return [name(o.name), right(figure(data, `${at}.sqnr_db`, "db")), right(figure(data, `${at}.worst_channel_db`, "db")), right(figure(data, `${at}.faithful_db`, "db")), right(figure(data, `${at}.max_abs_error`, "short")), o.problem ? el("span", { class: "bad" }, o.problem) : el("span", { class: "good" }, "good")];
  });
  const culprit = data.check.culprit ? el("p", { class: "bad" }, "The error starts at ", el("bdi", {}, data.check.culprit)) : null;
  return section("outputs", "Outputs", culprit, table(["output", right("to the float model"), right("worst channel"), right("to its own graph"), right("largest error"), "verdict"], rows));
}

function hostSection(data, show) {
  const rows = data.host_ops.map((h, i) => [el("code", {}, figure(data, `host_ops.${i}.op`)), valueLink(data, h, show), el("code", {}, figure(data, `host_ops.${i}.source`)), figure(data, `host_ops.${i}.reason`), figure(data, `host_ops.${i}.hint`)]);
  return section("host", "Left on the host", table(["op", "value", "your line", "why", "try"], rows, "host"));
}

function valueLink(data, hostOp, show) {
  const value = data.hosted[hostOp.name];
  return value && show ? link(value, show) : name(value ?? hostOp.name);
}

function link(value, show) {
  return el("button", { class: "link", type: "button", onclick: () => show(value) }, name(value));
}

// How far each value falls below what it reads; the first rounding of a clean signal is nobody's fault.
const FIRST_ROUNDING = 40;
function drops(data) {
  const errors = new Map(data.nodes.filter((n) => n.sqnr_db !== null).map((n) => [n.name, number(n.sqnr_db)]));
  const below = (n) => Math.min(FIRST_ROUNDING, ...n.reads.map((r) => errors.get(r.value) ?? FIRST_ROUNDING)) - errors.get(n.name);
  return data.nodes.map((n, i) => ({ n, i, drop: errors.has(n.name) ? below(n) : NaN })).filter((d) => d.drop > 0.5).sort((a, b) => b.drop - a.drop);
}

function errorSection(data, show) {
  const points = data.nodes.map((n, i) => [i, n.sqnr_db === null ? NaN : number(n.sqnr_db), n.name]).filter((p) => !Number.isNaN(p[1]));
  if (!points.length) return section("error", "Error along the network", el("p", { class: "none" }, "not known for this casting"));
  const worst = drops(data).slice(0, 8).map(({ n, i, drop }) => [link(n.name, show), el("code", {}, n.op), el("code", {}, figure(data, `nodes.${i}.source`)), right(figure(data, `nodes.${i}.sqnr_db`, "db")), right(`${drop.toFixed(1)} dB`)]);
  return section("error", "Error along the network",
    el("p", { class: "lead" }, "Signal to noise of every float value in the quantized graph against the float graph, on one batch."),
    errorChart([{ name: "", points }], data.nodes.length, show),
    el("h3", {}, "Where it falls"), table(["value", "op", "your line", right("there"), right("below what it reads")], worst));
}

function sizeSection(data, show) {
  const inside = data.delegates.reduce((a, d) => a + d.size, 0), weights = data.weights.reduce((a, w) => a + w.bytes, 0);
  const rows = data.delegates.map((d, i) => [badge(`delegate ${i + 1}`, placeHue(i + 1)), right(figure(data, `delegates.${i}.ops`, "count")), right(figure(data, `delegates.${i}.size`, "count")), right(FORMATS.count(data.weights.filter((w) => w.place === i + 1).reduce((a, w) => a + w.bytes, 0)))]);
  rows.push(["host ops, tables and padding", right(""), right(FORMATS.count(data.bytes - inside)), right(FORMATS.count(data.weights.filter((w) => !w.place).reduce((a, w) => a + w.bytes, 0)))]);
  rows.push([el("b", {}, "the file"), right(""), right(figure(data, "bytes", "count")), right(FORMATS.count(weights))]);
  const cells = data.weights.map((w) => ({ name: w.name.includes(".") ? w.name : `${w.module || w.reader} ${w.shape.join("\u00d7")}`, bytes: w.bytes, hue: placeHue(w.place), reader: w.reader }));
  return section("size", "Size", table(["part", right("ops"), right("bytes"), right("of it constants, as planned")], rows), cells.length ? el("h3", {}, "Constants by size") : null, cells.length ? treemap(cells, show) : null);
}

function timeSection(data) {
  const parts = [], timing = data.timing;
  if (timing) parts.push(el("p", { class: "lead" }, figure(data, "timing.how"), timing.seconds ? el("span", {}, ": ", figure(data, "timing.seconds", "ms"), ", of ", figure(data, "timing.runs", "count"), " runs.") : "."));
  if (timing?.parts.length) parts.push(byKind(timing.parts), el("h3", {}, "The longest ops"), bars(timing.parts.map((p, i) => ({ name: p.name, size: p.seconds, hue: placeHue(p.place), shown: el("span", {}, figure(data, `timing.parts.${i}.seconds`, "ms"), ` ${placeName(p.place)}`) })).filter((p) => p.size > 0).sort((a, b) => b.size - a.size).slice(0, 24)));
  data.performance.forEach((p, i) => parts.push(...(p.layers ? estimate(data, p, i) : p.segments ? contents(data, p, i) : [])));
  return section("time", "Time", ...(parts.length ? parts : [el("p", { class: "none" }, "not known")]));
}

function byKind(parts) {
  const sums = new Map(), whole = parts.reduce((a, p) => a + p.seconds, 0) || 1;
  for (const p of parts) { const key = `${p.name.replace(/ #\d+$/, "")}\u0000${p.place}`; sums.set(key, (sums.get(key) ?? 0) + p.seconds); }
  const rows = [...sums].sort((a, b) => b[1] - a[1]).slice(0, 12).map(([key, s]) => [name(key.split("\u0000")[0]), badge(placeName(Number(key.split("\u0000")[1])), placeHue(Number(key.split("\u0000")[1]))), right(FORMATS.ms(s)), right(`${((100 * s) / whole).toFixed(1)} %`)]);
  return table(["kind of op", "where", right("together"), right("share")], rows);
}

function estimate(data, p, i) {
  const at = `performance.${i}`, where = `${p.accelerator}, ${p.system_config}, ${p.memory_mode}`;
  const head = el("p", { class: "lead" }, `${p.compiler} estimates delegate ${i + 1} (${where}): `, figure(data, `${at}.cycles`, "count"), " cycles, ", figure(data, `${at}.seconds`, "ms"), "; SRAM ", figure(data, `${at}.sram_bytes`, "count"), " bytes.");
  const rows = p.layers.map((l, k) => ({ l, k })).sort((a, b) => b.l.cycles - a.l.cycles).slice(0, 24).map(({ l, k }) => ({ name: `${l.op}  ${l.name}`, size: l.cycles, hue: l.limit === "npu" ? placeHue(i + 1) : "float", shown: el("span", {}, figure(data, `${at}.layers.${k}.cycles`, "count"), ` cycles${l.limit ? `, limited by ${l.limit}` : ""}`) }));
  return [head, bars(rows)];
}

function contents(data, p, i) {
  const held = Object.keys(p.bytes).map((kind) => el("span", {}, ` ${kind} `, figure(data, `performance.${i}.bytes.${kind}`, "count"), " bytes;"));
  return [el("p", { class: "lead" }, `Delegate ${i + 1} is a ${p.format} of `, figure(data, `performance.${i}.segments.length`, "count"), " segments:", ...held)];
}

function recordedSection(data, show) {
  const seen = data.recorded;
  if (!seen) return section("recorded", "Recorded", el("p", { class: "none" }, "nothing was recorded, or it is not kept with this casting"));
  const known = new Set(data.nodes.map((n) => n.name)), kinds = Object.entries(seen.lacking);
  const rows = kinds.map(([kind, values]) => [kind, right(FORMATS.count(values.length)), el("span", {}, ...values.slice(0, 40).flatMap((v) => [known.has(v) ? link(v, show) : name(v), " "]), values.length > 40 ? `and ${values.length - 40} more` : null)]);
  return section("recorded", "Recorded",
    el("p", { class: "lead" }, figure(data, "recorded.batches", "count"), seen.batches === 1 ? " batch, " : " batches, ", figure(data, "recorded.samples", "count"), " samples, ", figure(data, "recorded.values", "count"), " values."),
    ...seen.notes.map((_, i) => el("p", { class: "warn" }, figure(data, `recorded.notes.${i}`))),
    rows.length ? table(["too little", right("values"), "which"], rows) : el("p", { class: "good" }, "No value was constant, unseen or not finite."));
}

const tensorText = (t) => `${t.dtype} ${FORMATS.shape(t.shape)}${t.layout === "contiguous" ? "" : ` ${t.layout}`}`;

function delegatesSection(data) {
  const sides = (tensors) => el("span", {}, ...tensors.flatMap((t) => [name(t.name), ` ${tensorText(t)} `, el("br")]));
  const rows = data.delegates.map((d, i) => [badge(`delegate ${i + 1}`, placeHue(i + 1)), figure(data, `delegates.${i}.backend`), right(figure(data, `delegates.${i}.ops`, "count")), sides(d.inputs), sides(d.outputs)]);
  return section("delegates", "Delegates", table(["", "backend", right("ops"), "takes", "gives"], rows));
}

function ioSection(data) {
  const rows = ["inputs", "outputs"].flatMap((side) => data.io[side].map((t, i) => {
    const at = `io.${side}.${i}`;
    return [side.slice(0, -1), name(t.name), figure(data, `${at}.dtype`), figure(data, `${at}.shape`, "shape"), figure(data, `${at}.layout`), right(figure(data, `${at}.scale`, "short")), right(figure(data, `${at}.zero_point`, "short")), right(t.qmin === null ? NONE : `${t.qmin} \u2026 ${t.qmax}`)];
  }));
  return section("interface", "Interface", table(["", "name", "type", "shape", "layout", right("scale"), right("zero point"), right("range")], rows));
}

function rewritesSection(data) {
  const steps = Object.entries(data.timings).map(([step]) => [step, right(figure(data, `timings.${step}`, "seconds"))]);
  return section("casting", "Casting", table(["step", right("took")], steps, "narrow"), data.rewrites.length ? el("h3", {}, "Rewritten") : null, data.rewrites.length ? el("ul", {}, ...data.rewrites.map((_, i) => el("li", {}, figure(data, `rewrites.${i}`)))) : null);
}

function notesSection(data) {
  const notes = ["notes", "details_notes"].flatMap((key) => (data[key] ?? []).map((_, i) => el("li", {}, figure(data, `${key}.${i}`))));
  return section("notes", "Notes", notes.length ? el("ul", {}, ...notes) : el("p", { class: "none" }, "none"));
}

function versionsSection(data) {
  return section("versions", "Versions", table(["what", "version"], Object.keys(data.versions).map((key) => [key, el("code", {}, el("span", { "data-versions": key }, data.versions[key]))]), "narrow"));
}
