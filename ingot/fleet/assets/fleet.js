// The page of a fleet: filters, the matrix of models and targets, quality against size and time, trends over sweeps.
const VERDICT_HUE = {
  passed: "e4", "goal not met": "e2", refused: "e2", wrong: "e1", "timed out": "e1", crashed: "e1", bug: "e1", lost: "gone",
};
const FIELDS = ["model", "target", "recipe", "verdict"];
const COSTS = { bytes: ["bytes", "count"], measured_seconds: ["measured latency", "ms"], cycles: ["cycles", "count"] };

function fleetPage(data) {
  const main = document.querySelector("main");
  const chosen = Object.fromEntries(FIELDS.map((f) => [f, ""]));
  const shown = el("div");
  const draw = () => {
    const rows = data.rows.filter((r) => FIELDS.every((f) => !chosen[f] || r[f] === chosen[f]));
    shown.replaceChildren(countLine(rows, data.rows), matrix(rows), fronts(rows), failures(rows));
  };
  main.append(filters(data.rows, chosen, draw), shown, trends(data.history), versions(data.rows));
  draw();
}

function distinct(rows, field) {
  return [...new Set(rows.map((r) => r[field]))];
}

function filters(rows, chosen, draw) {
  const pick = (field) => {
    const options = ["", ...distinct(rows, field)].map((v) => el("option", { value: v }, v || `every ${field}`));
    const change = (event) => { chosen[field] = event.target.value; draw(); };
    return el("select", { id: `filter-${field}`, "aria-label": field, onchange: change }, ...options);
  };
  return el("section", { id: "filters" }, el("div", { class: "bar" }, ...FIELDS.map(pick)));
}

function countLine(rows, all) {
  const counts = distinct(rows, "verdict").map((v) => `${rows.filter((r) => r.verdict === v).length} ${v}`);
  const text = `${FORMATS.count(rows.length)} of ${FORMATS.count(all.length)} cells: ${counts.join(", ") || "none"}`;
  return el("p", { id: "count", class: "lead" }, text);
}

// Rows are models, columns are targets; a place has a mark for each recipe.
function matrix(rows) {
  const targets = distinct(rows, "target");
  const places = new Map();
  for (const r of rows) places.set(`${r.model}\n${r.target}`, [...(places.get(`${r.model}\n${r.target}`) ?? []), r]);
  const lines = distinct(rows, "model").map((model) => [
    name(model), ...targets.map((t) => marks(places.get(`${model}\n${t}`) ?? [])),
  ]);
  return section("matrix", "Models and targets", table(["model", ...targets.map((t) => name(t))], lines));
}

function marks(rows) {
  const made = rows.map((r) => {
    const text = r.sqnr_db === null || r.sqnr_db === undefined ? r.verdict : FORMATS.db(r.sqnr_db);
    const mark = el("a", { class: `badge hue-${VERDICT_HUE[r.verdict]}`, href: r.report ?? null, title: cellTitle(r) }, text);
    return mark;
  });
  return el("div", { class: "badges" }, ...made);
}

function cellTitle(r) {
  const figures = r.error
    ? r.error.text
    : `${r.delegates} delegates, ${r.host_ops} host ops, ${FORMATS.count(r.bytes)} bytes`;
  return `${r.recipe}: ${r.verdict}. ${figures}`.slice(0, 400);
}

// For each model: SQNR against what it costs; the points that nothing beats are joined.
const MOST_FRONTS = 60;
function fronts(rows) {
  const good = rows.filter((r) => typeof number(r.sqnr_db) === "number" && r.bytes);
  const models = distinct(good, "model");
  const drawn = models.slice(0, MOST_FRONTS).map((m) => front(m, good.filter((r) => r.model === m)));
  const more = models.length > drawn.length ? el("p", { class: "none" }, `${models.length - drawn.length} more: choose a model`) : null;
  return section("fronts", "Quality against cost", el("div", { class: "fronts" }, ...drawn.flat()), more);
}

function front(model, rows) {
  const measured = Object.entries(COSTS).filter(([key]) => rows.filter((r) => r[key]).length > 1);
  return measured.map(([key, [what, as]]) => scatter(model, what, as, rows.filter((r) => r[key]), key));
}

function scatter(model, what, as, rows, key) {
  const width = 300, height = 150, pad = 34;
  const xs = rows.map((r) => Math.log(r[key])), ys = rows.map((r) => Math.min(number(r.sqnr_db), 80));
  const scale = (values, from, to) => {
    const low = Math.min(...values), high = Math.max(...values);
    return (v) => (high > low ? from + ((v - low) / (high - low)) * (to - from) : (from + to) / 2);
  };
  const x = scale(xs, pad, width - 12), y = scale(ys, height - 24, 14);
  const svgs = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", class: "front" });
  const best = pareto(rows, key).map((r) => `${x(Math.log(r[key])).toFixed(1)},${y(Math.min(number(r.sqnr_db), 80)).toFixed(1)}`);
  svgs.append(svg("polyline", { points: best.join(" "), class: "line line-0" }));
  rows.forEach((r, i) => {
    const dot = svg("circle", { cx: x(xs[i]), cy: y(ys[i]), r: 4, class: `spot-${r.verdict === "passed" ? "good" : "bad"}` });
    dot.append(svg("title", {}, `${r.target}, ${r.recipe}: ${FORMATS.db(r.sqnr_db)}, ${FORMATS[as](r[key])}`));
    svgs.append(dot);
  });
  svgs.append(label(pad, height - 6, FORMATS[as](Math.exp(Math.min(...xs))), 0, "soft"), label(width - 8, height - 6, FORMATS[as](Math.exp(Math.max(...xs))), 1, "soft"));
  svgs.append(label(2, 12, FORMATS.db(Math.max(...ys)), 0, "soft"), label(2, height - 24, FORMATS.db(Math.min(...ys)), 0, "soft"));
  return el("figure", {}, el("figcaption", { class: "small" }, name(model), ` · SQNR against ${what}`), svgs);
}

function pareto(rows, key) {
  const sorted = [...rows].sort((a, b) => a[key] - b[key] || number(b.sqnr_db) - number(a.sqnr_db));
  let best = -Infinity;
  return sorted.filter((r) => number(r.sqnr_db) > best && (best = number(r.sqnr_db), true));
}

const MOST_FAILURES = 200;
function failures(rows) {
  const failed = rows.filter((r) => r.verdict !== "passed");
  const lines = failed.slice(0, MOST_FAILURES).map((r) => [
    name(r.model), name(r.target), name(r.recipe), badge(r.verdict, VERDICT_HUE[r.verdict]), r.error ? r.error.text : (r.host_op_names ?? []).join(", "),
  ]);
  const more = failed.length > lines.length ? el("p", { class: "none" }, `${failed.length - lines.length} more: use the filters`) : null;
  return section("failures", "Not passed", table(["model", "target", "recipe", "verdict", "why"], lines), more);
}

// Of each sweep: how many cells passed, and the median of their SQNR and bytes.
function trends(history) {
  const lines = history.map((h) => [
    h.started, right(`${h.passed} of ${h.cells}`), right(h.sqnr_db === null ? NONE : FORMATS.db(h.sqnr_db)),
    right(h.bytes === null ? NONE : FORMATS.count(h.bytes)), Object.entries(h.versions).map(([k, v]) => `${k} ${v}`).join(", "),
  ]);
  const head = ["sweep", right("passed"), right("median SQNR"), right("median bytes"), "versions"];
  return section("trends", "Sweeps", table(head, lines));
}

function versions(rows) {
  const found = new Map();
  for (const r of rows) for (const [k, v] of Object.entries(r.versions ?? {})) found.set(k, new Set([...(found.get(k) ?? []), v]));
  return section("versions", "Versions", table(["package", "version"], [...found].map(([k, v]) => [k, [...v].join(", ")]), "narrow"));
}

fleetPage(JSON.parse(document.getElementById("data").textContent));
document.body.dataset.ready = "true";
