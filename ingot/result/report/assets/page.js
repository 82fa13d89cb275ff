// The page of one casting.
function report(data) {
  const main = document.querySelector("main");
  const graph = data.nodes.length ? graphSection(data) : null;
  const show = graph ? graph.show : null;
  const parts = [
    tiles(data),
    outputsSection(data),
    ...(data.goal ? [goalSection(data)] : []),
    ...(data.methods?.length ? [methodsSection(data)] : []),
    graph?.section ?? section("graph", "Graph", el("p", { class: "none" }, "this casting has no graph")),
    hostSection(data, show),
    errorSection(data, show),
    sizeSection(data, show),
    timeSection(data),
    recordedSection(data, show),
    delegatesSection(data),
    ioSection(data),
    rewritesSection(data),
    notesSection(data),
    versionsSection(data),
  ];
  main.append(...parts);
  document
    .querySelector("nav")
    .append(...parts.filter((p) => p.id).map((p) => el("a", { href: `#${p.id}` }, p.querySelector("h2").textContent)));
  if (graph) graph.start();
}

function tiles(data) {
  const tile = (label, value, more) =>
    el(
      "div",
      { class: "tile" },
      el("div", { class: "tile-label" }, label),
      el("div", { class: "tile-value" }, value),
      more ? el("div", { class: "tile-more" }, more) : null,
    );
  const check = data.check,
    outputs = check?.outputs ?? [];
  const worst = outputs.reduce((at, o, i) => (at < 0 || number(o.sqnr_db) < number(outputs[at].sqnr_db) ? i : at), -1);
  const made = [
    tile(
      "delegates",
      figure(data, "delegates.length", "count"),
      [...new Set(data.delegates.map((d) => d.backend))].join(", "),
    ),
    tile(
      "host ops",
      figure(data, "host_ops.length", "count"),
      data.host_ops.length ? "reasons below" : "none",
    ),
    tile("bytes", figure(data, "bytes", "count"), "program file"),
  ];
  if (worst >= 0)
    made.push(
      tile(
        outputs.length > 1 ? "SQNR, worst output" : "SQNR",
        figure(data, `check.outputs.${worst}.sqnr_db`, "db"),
        name(outputs[worst].name),
      ),
    );
  const time = timeOf(data);
  if (time) made.push(tile(time.label, figure(data, time.path, "ms"), time.more));
  made.push(
    tile(
      "executed on",
      check ? el("span", { class: "words" }, figure(data, "check.executed_on")) : NONE,
      check
        ? el(
            "span",
            {},
            figure(data, "check.batches", "count"),
            check.batches === 1 ? " batch" : " batches",
            ...(check.judged_on ? [": ", figure(data, "check.judged_on")] : []),
          )
        : "not executed",
    ),
  );
  return el("div", { class: "tiles" }, ...made);
}

function timeOf(data) {
  if (data.timing?.seconds) return { label: "latency", path: "timing.seconds", more: "measured on the machine of the cast" };
  const estimates = data.performance.filter((p) => p.seconds);
  return estimates.length === 1
    ? {
        label: "latency",
        path: `performance.${data.performance.indexOf(estimates[0])}.seconds`,
        more: `estimated by ${estimates[0].compiler}`,
      }
    : null;
}

function outputsSection(data) {
  if (!data.check) return section("outputs", "Outputs", el("p", { class: "none" }, "the artefact was not executed"));
  const rows = data.check.outputs.map((o, i) => {
    const at = `check.outputs.${i}`;
    return [
      name(o.name),
      right(figure(data, `${at}.sqnr_db`, "db")),
      right(figure(data, `${at}.worst_channel_db`, "db")),
      right(figure(data, `${at}.faithful_db`, "db")),
      right(figure(data, `${at}.max_abs_error`, "short")),
      o.problem ? el("span", { class: "bad" }, o.problem) : el("span", { class: "good" }, "passed"),
    ];
  });
  const culprit = data.check.culprit
    ? el("p", { class: "bad" }, "The error starts at ", el("bdi", {}, data.check.culprit))
    : null;
  return section(
    "outputs",
    "Outputs",
    culprit,
    table(
      [
        "output",
        right("SQNR to float model"),
        right("worst channel"),
        right("SQNR to quantized graph"),
        right("largest error"),
        "check",
      ],
      rows,
    ),
  );
}

function hostSection(data, show) {
  const rows = data.host_ops.map((h, i) => [
    el("code", {}, figure(data, `host_ops.${i}.op`)),
    valueLink(data, h, show),
    el("code", {}, figure(data, `host_ops.${i}.source`)),
    figure(data, `host_ops.${i}.reason`),
    figure(data, `host_ops.${i}.hint`),
  ]);
  return section("host", "Host ops", table(["op", "value", "your line", "why", "try"], rows, "host"));
}

function valueLink(data, hostOp, show) {
  const value = data.hosted[hostOp.name];
  return value && show ? link(value, show) : name(value ?? hostOp.name);
}

function link(value, show) {
  return el("button", { class: "link", type: "button", onclick: () => show(value) }, name(value));
}

const tensorText = (t) => `${t.dtype} ${FORMATS.shape(t.shape)}${t.layout === "contiguous" ? "" : ` ${t.layout}`}`;

// The sizes of the program. What else is on the page is of the first.
function methodsSection(data) {
  const rows = data.methods.map((m, i) => [
    name(m.name),
    el("span", {}, ...m.inputs.flatMap((t) => [name(t.name), ` ${tensorText(t)} `, el("br")])),
    right(figure(data, `methods.${i}.delegates`, "count")),
    right(figure(data, `methods.${i}.host_ops`, "count")),
  ]);
  return section("methods", "Methods", table(["", "inputs", right("delegates"), right("host ops")], rows));
}

function delegatesSection(data) {
  const sides = (tensors) => el("span", {}, ...tensors.flatMap((t) => [name(t.name), ` ${tensorText(t)} `, el("br")]));
  const rows = data.delegates.map((d, i) => [
    badge(`delegate ${i + 1}`, placeHue(i + 1)),
    figure(data, `delegates.${i}.backend`),
    right(figure(data, `delegates.${i}.ops`, "count")),
    sides(d.inputs),
    sides(d.outputs),
  ]);
  return section("delegates", "Delegates", table(["", "backend", right("ops"), "inputs", "outputs"], rows));
}

function ioSection(data) {
  const rows = ["inputs", "outputs"].flatMap((side) =>
    data.io[side].map((t, i) => {
      const at = `io.${side}.${i}`;
      return [
        side.slice(0, -1),
        name(t.name),
        figure(data, `${at}.dtype`),
        figure(data, `${at}.shape`, "shape"),
        figure(data, `${at}.layout`),
        right(figure(data, `${at}.scale`, "short")),
        right(figure(data, `${at}.zero_point`, "short")),
        right(t.qmin === null ? NONE : `${t.qmin} \u2026 ${t.qmax}`),
      ];
    }),
  );
  return section(
    "interface",
    "Inputs and outputs",
    table(["", "name", "type", "shape", "layout", right("scale"), right("zero point"), right("range")], rows),
  );
}

function rewritesSection(data) {
  const steps = Object.entries(data.timings).map(([step]) => [step, right(figure(data, `timings.${step}`, "seconds"))]);
  return section(
    "casting",
    "Casting",
    table(["step", right("time")], steps, "narrow"),
    data.rewrites.length ? el("h3", {}, "Rewrites") : null,
    data.rewrites.length
      ? el("ul", {}, ...data.rewrites.map((_, i) => el("li", {}, figure(data, `rewrites.${i}`))))
      : null,
  );
}

function notesSection(data) {
  const notes = data.notes.map((_, i) => el("li", {}, figure(data, `notes.${i}`)));
  return section("notes", "Notes", notes.length ? el("ul", {}, ...notes) : el("p", { class: "none" }, "none"));
}

function versionsSection(data) {
  return section(
    "versions",
    "Versions",
    table(
      ["package", "version"],
      Object.keys(data.versions).map((key) => [
        key,
        el("code", {}, el("span", { "data-versions": key }, data.versions[key])),
      ]),
      "narrow",
    ),
  );
}
