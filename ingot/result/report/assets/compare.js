// The page that compares two castings.
function comparison(data) {
  const main = document.querySelector("main");
  const parts = [factsSection(data), bothErrors(data), planSection(data), bothHosts(data), bothVersions(data)];
  main.append(...parts);
  document
    .querySelector("nav")
    .append(...parts.map((p) => el("a", { href: `#${p.id}` }, p.querySelector("h2").textContent)));
}

function factsSection(data) {
  const [a, b] = data.sides.map((s) => s.name);
  const rows = data.rows.map((r, i) => [
    r.what,
    right(cell(data, `rows.${i}.first`, r.as)),
    right(cell(data, `rows.${i}.second`, r.as)),
    right(el("span", { class: r.trend }, r.change)),
  ]);
  return section(
    "facts",
    "Side by side",
    table(["", right(name(a)), right(name(b)), right("change")], rows),
  );
}

const cell = (data, path, as) => figure(data, path, as);

function bothErrors(data) {
  const lines = data.sides.map((s) => ({
    name: s.name,
    points: s.errors.map(([place, db, what]) => [place, number(db), what]).filter((p) => !Number.isNaN(p[1])),
  }));
  const count = data.sides.reduce((n, s) => Math.max(n, s.values), 1);
  if (!lines.some((l) => l.points.length))
    return section("error", "SQNR along the network", el("p", { class: "none" }, "not measured"));
  const keys = el(
    "div",
    { class: "legend" },
    ...lines.map((l, k) =>
      el("span", { class: "key" }, el("i", { class: `swatch hue-${k ? "host" : "d1"}` }), name(l.name)),
    ),
  );
  return section("error", "SQNR along the network", keys, sqnrChart(lines, count, null));
}

function planSection(data) {
  const rows = data.plan.map((d) => [name(d.point), d.first, d.second]);
  const shown = rows.slice(0, 500);
  const more =
    rows.length > shown.length
      ? el("p", { class: "none" }, `${FORMATS.count(rows.length - shown.length)} more: see \`ingot diff\``)
      : null;
  return section(
    "plan",
    "Quantization points that differ",
    rows.length ? el("p", { class: "lead" }, `${FORMATS.count(rows.length)} in all`) : null,
    table(["quantization point", "first", "second"], shown),
    more,
  );
}

function bothHosts(data) {
  const rows = data.host_ops.map((h) => [el("code", {}, h.op), el("code", {}, h.source), h.where, h.reason]);
  return section("host", "Host ops", table(["op", "your line", "in", "why"], rows, "host"));
}

function bothVersions(data) {
  return section(
    "versions",
    "Versions",
    table(
      ["package", ...data.sides.map((s) => name(s.name))],
      data.versions.map((v) => [v.what, v.first, v.second]),
      "narrow",
    ),
  );
}
