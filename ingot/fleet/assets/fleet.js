// The page of a fleet: filters, the matrix of models and targets, quality against size and time, trends over sweeps.
const VERDICT_HUE = {
  passed: "e4", "goal not met": "e2", refused: "e2", wrong: "e1", "timed out": "e1", crashed: "e1", bug: "e1", lost: "gone",
};
const SHORT = { "timed out": "time-out", "goal not met": "not met" };
const FIELDS = ["model", "target", "recipe", "verdict"];
const COSTS = { bytes: ["size", "size"], measured_seconds: ["measured latency", "ms"], cycles: ["cycles", "round"] };
FORMATS.size = (v) => (v >= 1e6 ? `${(v / 1e6).toPrecision(3)} MB` : v >= 1e3 ? `${(v / 1e3).toPrecision(3)} kB` : `${v} bytes`);
FORMATS.round = (v) => FORMATS.count(Number(v.toPrecision(4)));
FORMATS.share = (v) => `${Math.floor(100 * v)} %`;

function fleetPage(data) {
  const main = document.querySelector("main");
  const chosen = Object.fromEntries(FIELDS.map((f) => [f, ""]));
  const shown = el("div");
  const draw = () => {
    const rows = data.rows.filter((r) => FIELDS.every((f) => !chosen[f] || r[f] === chosen[f]));
    shown.replaceChildren(
      countLine(rows, data.rows), matrix(rows), fronts(rows), failures(rows), trends(data.history, chosen.model),
    );
  };
  main.append(filters(data.rows, chosen, draw), shown, versions(data.rows));
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
  const counts = distinct(rows, "verdict").map((v) => `${FORMATS.count(rows.filter((r) => r.verdict === v).length)} ${v}`);
  const text = `${FORMATS.count(rows.length)} of ${FORMATS.count(all.length)} cells: ${counts.join(", ") || "none"}`;
  return el("p", { id: "count", class: "lead" }, text);
}

// Rows are models, columns are targets; a place has a mark for each recipe, always at the same spot.
const MOST_ACROSS = 4;
function matrix(rows) {
  const targets = distinct(rows, "target"), recipes = distinct(rows, "recipe");
  const cells = new Map(rows.map((r) => [`${r.model}\n${r.target}\n${r.recipe}`, r]));
  const place = (m, t) => marks(recipes.map((r) => cells.get(`${m}\n${t}\n${r}`)));
  const lines = distinct(rows, "model").map((m) => [name(m), ...targets.map((t) => place(m, t))]);
  const order = el("p", { class: "lead" }, "SQNR in dB, or what happened. In each place: ", ...joined(recipes.map((r) => name(r)), ", "));
  return section("matrix", "Models and targets", order, table(["model", ...targets.map((t) => name(t))], lines));
}

function joined(parts, between) {
  return parts.flatMap((p, i) => (i ? [between, p] : [p]));
}

function marks(rows) {
  const across = rows.length > MOST_ACROSS ? Math.ceil(rows.length / Math.ceil(rows.length / MOST_ACROSS)) : rows.length;
  return el("div", { class: `marks across-${across}` }, ...rows.map((r) => (r ? mark(r) : el("span", { class: "none" }, NONE))));
}

function mark(r) {
  const sqnr = number(r.sqnr_db);
  const text = typeof sqnr !== "number" ? SHORT[r.verdict] ?? r.verdict : sqnr >= 200 ? "exact" : sqnr.toFixed(1);
  const what = r.verdict === "passed" || r.error ? "" : ` (${r.verdict})`;
  return el("a", { class: `badge hue-${VERDICT_HUE[r.verdict]}`, href: r.report ?? null, title: cellTitle(r), "aria-label": `${r.recipe}: ${text}${what}` }, text);
}

function cellTitle(r) {
  const figures = r.error
    ? r.error.text
    : `${r.delegates} delegates, ${r.host_ops} host ops, ${FORMATS.count(r.bytes)} bytes`;
  return `${r.recipe}: ${r.verdict}. ${figures}`.slice(0, 400);
}

// For each model: SQNR against what it costs; passed cells that nothing beats are joined.
const MOST_FRONTS = 60;
function fronts(rows) {
  const good = rows.filter((r) => Number.isFinite(number(r.sqnr_db)) && r.bytes);
  const models = distinct(good, "model"), targets = distinct(good, "target");
  const drawn = models.slice(0, MOST_FRONTS).flatMap((m) => front(m, good.filter((r) => r.model === m), targets));
  const more = models.length > MOST_FRONTS ? el("p", { class: "none" }, `${models.length - MOST_FRONTS} more: choose a model`) : null;
  return section("fronts", "Quality against cost", legend(targets), el("div", { class: "fronts" }, ...drawn), more);
}

const targetHue = (targets, t) => `d${(targets.indexOf(t) % HUES) + 1}`;
function legend(targets) {
  const key = (hue, text) => el("span", { class: "key" }, el("span", { class: `swatch hue-${hue}` }), text);
  return el("p", { class: "legend" }, ...targets.map((t) => key(targetHue(targets, t), t)), key("e1", "did not pass"));
}

function front(model, rows, targets) {
  const measured = Object.entries(COSTS).filter(([key]) => rows.filter((r) => r[key]).length > 1);
  return measured.map(([key, [what, as]]) => scatter(model, what, as, rows.filter((r) => r[key]), key, targets));
}

const ends = (values) => [Math.min(...values), Math.max(...values)];
const WIDE = 300, HIGH = 160, LEFT = 66, BOTTOM = 26, TOP = 14;
function scaled(values, from, to) {
  const [low, high] = ends(values);
  return (v) => (high > low ? from + ((v - low) / (high - low)) * (to - from) : (from + to) / 2);
}

function axes(drawn, xs, ys) {
  const floor = HIGH - BOTTOM;
  drawn.append(svg("line", { x1: LEFT - 8, x2: WIDE - 6, y1: floor + 6, y2: floor + 6, class: "axis" }));
  drawn.append(svg("line", { x1: LEFT - 8, x2: LEFT - 8, y1: TOP - 6, y2: floor + 6, class: "axis" }));
  drawn.append(label(LEFT - 8, HIGH - 6, xs[0], 0, "soft"), label(WIDE - 6, HIGH - 6, xs[0] === xs[1] ? "" : xs[1], 1, "soft"));
  drawn.append(label(LEFT - 13, TOP + 4, ys[1], 1, "soft"), label(LEFT - 13, floor + 4, ys[0] === ys[1] ? "" : ys[0], 1, "soft"));
}

function scatter(model, what, as, rows, key, targets) {
  const db = (r) => Math.min(number(r.sqnr_db), 80), cost = (r) => Math.log(r[key]);
  const x = scaled(rows.map(cost), LEFT, WIDE - 14), y = scaled(rows.map(db), HIGH - BOTTOM, TOP);
  const drawn = svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", class: "front" });
  const costs = rows.map((r) => r[key]), dbs = rows.map((r) => number(r.sqnr_db));
  axes(drawn, ends(costs).map(FORMATS[as]), ends(dbs).map(FORMATS.db));
  const best = pareto(rows, key).map((r) => `${x(cost(r)).toFixed(1)},${y(db(r)).toFixed(1)}`);
  drawn.append(svg("polyline", { points: best.join(" "), class: "line best" }));
  for (const r of rows) {
    const hue = r.verdict === "passed" ? targetHue(targets, r.target) : "e1";
    const dot = svg("circle", { cx: x(cost(r)).toFixed(1), cy: y(db(r)).toFixed(1), r: 4.2, class: `fill-${hue}` });
    dot.append(svg("title", {}, `${r.target}, ${r.recipe}: ${FORMATS.db(r.sqnr_db)}, ${FORMATS[as](r[key])}, ${r.verdict}`));
    drawn.append(dot);
  }
  return el("figure", {}, el("figcaption", { class: "small" }, name(model), ` \u00b7 SQNR against ${what}`), drawn);
}

function pareto(rows, key) {
  const passed = rows.filter((r) => r.verdict === "passed");
  const sorted = passed.sort((a, b) => a[key] - b[key] || number(b.sqnr_db) - number(a.sqnr_db));
  let best = -Infinity;
  return sorted.filter((r) => number(r.sqnr_db) > best && (best = number(r.sqnr_db), true));
}

const MOST_FAILURES = 200;
function failures(rows) {
  const failed = rows.filter((r) => r.verdict !== "passed");
  const lines = failed.slice(0, MOST_FAILURES).map((r) => [
    name(r.model), name(r.target), name(r.recipe), badge(r.verdict, VERDICT_HUE[r.verdict]), why(r),
  ]);
  const more = failed.length > lines.length ? el("p", { class: "none" }, `${failed.length - lines.length} more: use the filters`) : null;
  return section("failures", "Not passed", table(["model", "target", "recipe", "verdict", "why"], lines), more);
}

function why(r) {
  if (r.error) return r.error.text;
  const figures = typeof number(r.sqnr_db) === "number" ? `${FORMATS.db(r.sqnr_db)} against the float model` : "its outputs are wrong";
  return el("span", {}, figures, "; ", el("a", { href: r.report }, "report"));
}

// Of each sweep, of all models or of one: the share of cells that passed, and medians.
const TRENDS = { passed: ["cells that passed", "share"], sqnr_db: ["median SQNR", "db"], bytes: ["median size", "size"], measured_seconds: ["median latency", "ms"] };
function trends(history, model) {
  const sweeps = history.map((h) => ({ ...h, ...(model ? (h.models[model] ?? {}) : h.all) })).filter((h) => h.cells);
  const drawn = sweeps.length > 1 ? Object.keys(TRENDS).map((key) => trend(sweeps, key)).filter(Boolean) : [];
  const lines = sweeps.toReversed().map((h) => [
    h.started.replace("T", " ").replace("Z", ""), right(`${FORMATS.count(h.passed)} of ${FORMATS.count(h.cells)}`), ...["sqnr_db", "bytes", "measured_seconds"].map((k) => right(figureOf(h, k))),
    Object.entries(h.versions).map(([k, v]) => `${k} ${v}`).join(", "),
  ]);
  const head = ["sweep (UTC)", right("passed"), right("median SQNR"), right("median size"), right("median latency"), "versions"];
  return section("trends", model ? `Sweeps: ${model}` : "Sweeps", el("div", { class: "fronts" }, ...drawn), table(head, lines));
}

const trendValue = (h, key) => (key === "passed" ? h.passed / h.cells : h[key]);
const figureOf = (h, key) => (trendValue(h, key) === null ? NONE : FORMATS[TRENDS[key][1]](trendValue(h, key)));

function trend(sweeps, key) {
  const known = sweeps.filter((h) => trendValue(h, key) !== null && trendValue(h, key) !== undefined);
  if (known.length < 2) return null;
  const [what, as] = TRENDS[key], values = known.map((h) => trendValue(h, key));
  const x = scaled([0, known.length - 1], LEFT, WIDE - 14), y = scaled(values, HIGH - BOTTOM, TOP);
  const drawn = svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", class: "front" });
  axes(drawn, [known[0], known.at(-1)].map((h) => h.started.slice(0, 10)), ends(values).map(FORMATS[as]));
  drawn.append(svg("polyline", { points: values.map((v, i) => `${x(i).toFixed(1)},${y(v).toFixed(1)}`).join(" "), class: "line line-0" }));
  known.forEach((h, i) => {
    const dot = svg("circle", { cx: x(i).toFixed(1), cy: y(values[i]).toFixed(1), r: 3.2, class: `dot-${versionsChanged(known, i) ? 1 : 0}` });
    dot.append(svg("title", {}, `${h.started}: ${FORMATS[as](values[i])}; ${JSON.stringify(h.versions)}`));
    drawn.append(dot);
  });
  return el("figure", {}, el("figcaption", { class: "small" }, `${what} over ${known.length} sweeps; orange: other versions`), drawn);
}

function versionsChanged(sweeps, i) {
  return i > 0 && JSON.stringify(sweeps[i].versions) !== JSON.stringify(sweeps[i - 1].versions);
}

function versions(rows) {
  const found = new Map();
  for (const r of rows) for (const [k, v] of Object.entries(r.versions ?? {})) found.set(k, new Set([...(found.get(k) ?? []), v]));
  return section("versions", "Versions", table(["package", "version"], [...found].map(([k, v]) => [k, [...v].join(", ")]), "narrow"));
}

fleetPage(JSON.parse(document.getElementById("data").textContent));
document.body.dataset.ready = "true";
