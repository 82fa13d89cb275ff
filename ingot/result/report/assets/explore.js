// The graph with its search box, its legend and the panel of the selected value.
function graphSection(data) {
  const panel = el(
    "aside",
    { class: "panel", "aria-live": "polite" },
    el(
      "p",
      { class: "none" },
      "Select a node, or search for one, to see its qparams and why, its calibration statistics and its SQNR.",
    ),
  );
  const view = new GraphView(data.nodes, (i) => panel.replaceChildren(...about(data, i, show)));
  const show = (value) => {
    const i = view.at.get(value);
    if (i === undefined) return;
    document.getElementById("graph").scrollIntoView({ block: "start" });
    view.pick(i, true);
  };
  const legend = el("div", { class: "legend" });
  const bar = el(
    "div",
    { class: "bar" },
    searchBox(data, (i) => view.pick(i, true)),
    colorChoice(view, data, legend),
    zoomButtons(view),
  );
  const made = section("graph", "Graph", bar, legend, el("div", { class: "stage" }, view.canvas, panel));
  return { section: made, show, start: () => view.layOut(document.getElementById("layouter").textContent) };
}

function zoomButtons(view) {
  const button = (text, title, act) => el("button", { type: "button", title, onclick: act }, text);
  return el(
    "span",
    { class: "buttons" },
    button("+", "zoom in", () => view.zoom(1.3)),
    button("\u2212", "zoom out", () => view.zoom(1 / 1.3)),
    button("top", "go to the first node", () => {
      view.home();
      view.draw();
    }),
    button("fit", "show the whole graph", () => view.fit()),
  );
}

function colorChoice(view, data, legend) {
  const fill = () => legend.replaceChildren(...legendOf(data, view.by));
  const choice = el(
    "select",
    {
      "aria-label": "color by",
      onchange: (e) => {
        view.by = e.target.value;
        fill();
        view.draw();
      },
    },
    ...[
      ["place", "delegate"],
      ["precision", "precision"],
      ["error", "SQNR"],
    ].map(([value, text]) => el("option", { value }, text)),
  );
  fill();
  return el("label", { class: "choice" }, "color by ", choice);
}

function legendOf(data, by) {
  const keys = new Map();
  for (const n of data.nodes)
    if (n.op !== "input" && n.op !== "output") {
      const [hue, text] =
        by === "place"
          ? [placeHue(n.place), n.place > HUES ? "further delegates (colors repeat)" : placeName(n.place)]
          : by === "precision"
            ? [precisionHue(n.precision), n.precision]
            : [
                sqnrHue(n.sqnr_db),
                { e4: "40 dB and more", e3: "30 to 40 dB", e2: "20 to 30 dB", e1: "below 20 dB", gone: "not measured" }[
                  sqnrHue(n.sqnr_db)
                ],
              ];
      keys.set(text, [hue, (keys.get(text)?.[1] ?? 0) + 1]);
    }
  const marks = [
    ["d1", "Q", "quantize"],
    ["float", "D", "dequantize"],
    ["d4", "R", "requantize"],
  ].filter(([, , kind]) => data.nodes.some((n) => n.reads.some((r) => r.converts === kind)));
  return [
    ...[...keys].map(([text, [hue, count]]) =>
      el(
        "span",
        { class: "key" },
        el("i", { class: `swatch hue-${hue}` }),
        `${text} `,
        el("small", {}, FORMATS.count(count)),
      ),
    ),
    ...marks.map(([hue, letter, kind]) =>
      el("span", { class: "key" }, el("i", { class: `mark mark-${hue}` }, letter), kind),
    ),
    by === "precision" ? null : el("span", { class: "key soft" }, "stripe: precision"),
  ].filter(Boolean);
}

function about(data, i, show) {
  const node = data.nodes[i],
    at = `nodes.${i}`;
  const readers = data.nodes.filter((n) => n.reads.some((r) => r.value === node.name));
  const links = (values) =>
    el(
      "span",
      {},
      ...values.slice(0, 30).flatMap((v) => [link(v, show), " "]),
      values.length > 30 ? `and ${values.length - 30} more` : null,
    );
  const facts = [
    ["your line", el("code", {}, figure(data, `${at}.source`))],
    ["module", node.module ? figure(data, `${at}.module`) : null],
    ["shape", el("span", {}, figure(data, `${at}.dtype`), " ", figure(data, `${at}.shape`, "shape"))],
    ["quantization", figure(data, `${at}.stored`)],
    ["SQNR", el("span", {}, figure(data, `${at}.sqnr_db`, "db"), node.sqnr_db === null ? null : " against float")],
    [
      "reads",
      node.reads.length
        ? el(
            "span",
            {},
            ...node.reads.flatMap((r) => [link(r.value, show), r.converts ? el("small", {}, ` ${r.converts}d `) : " "]),
          )
        : null,
    ],
    ["constants", node.constants.length ? el("span", {}, ...node.constants.flatMap((c) => [name(c), " "])) : null],
    ["read by", readers.length ? links(readers.map((n) => n.name)) : null],
  ];
  return [
    el("h3", {}, name(node.name)),
    el(
      "p",
      { class: "badges" },
      badge(node.op.slice(0, 60), "io"),
      node.op === "input" || node.op === "output" ? null : badge(placeName(node.place), placeHue(node.place)),
      badge(node.precision, precisionHue(node.precision)),
    ),
    el("dl", {}, ...facts.filter(([, v]) => v).flatMap(([k, v]) => [el("dt", {}, k), el("dd", {}, v)])),
    ...statisticsPart(data, node, at),
    el("h4", {}, "why"),
    el("pre", { class: "why", dir: "auto" }, node.why || "no decision in the plan"),
  ];
}

function statisticsPart(data, node, at) {
  const s = node.spread;
  if (!s) return [];
  const text = el(
    "p",
    { class: "small" },
    "recorded ",
    figure(data, `${at}.spread.min`, "short"),
    " \u2026 ",
    figure(data, `${at}.spread.max`, "short"),
    ", ",
    figure(data, `${at}.spread.count`, "count"),
    " numbers",
    s.nonfinite
      ? el("span", { class: "bad" }, ", ", figure(data, `${at}.spread.nonfinite`, "count"), " not finite")
      : null,
    s.chosen
      ? el(
          "span",
          { class: "chosen-word" },
          "; chosen range ",
          figure(data, `${at}.spread.chosen.0`, "short"),
          " \u2026 ",
          figure(data, `${at}.spread.chosen.1`, "short"),
        )
      : node.precision.startsWith("float")
        ? "; float"
        : "; fused, no qparams of its own",
  );
  return [el("h4", {}, "calibration statistics"), s.bins.length ? histogramChart(s) : null, text].filter(Boolean);
}
