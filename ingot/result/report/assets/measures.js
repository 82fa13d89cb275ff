// The sections with measurements: SQNR, size, time, calibration.
function errorSection(data, show) {
  const points = data.nodes
    .map((n, i) => [i, n.sqnr_db === null ? NaN : number(n.sqnr_db), n.name])
    .filter((p) => !Number.isNaN(p[1]));
  if (!points.length)
    return section("error", "SQNR along the network", el("p", { class: "none" }, "not measured for this casting"));
  const worst = data.sqnr_drops
    .slice(0, 8)
    .map((drop, i) => [
      link(drop.name, show),
      el("code", {}, figure(data, `sqnr_drops.${i}.op`)),
      el("code", {}, figure(data, `sqnr_drops.${i}.source`)),
      right(figure(data, `sqnr_drops.${i}.sqnr_db`, "db")),
      right(figure(data, `sqnr_drops.${i}.below_db`, "db")),
    ]);
  return section(
    "error",
    "SQNR along the network",
    el(
      "p",
      { class: "lead" },
      "SQNR of every float value of the quantized graph against the float graph, on one batch.",
    ),
    sqnrChart([{ name: "", points }], data.nodes.length, show),
    el("h3", {}, "Largest SQNR drops"),
    table(["value", "op", "your line", right("SQNR"), right("below its operands")], worst),
  );
}

function sizeSection(data, show) {
  const rows = data.sizes.map((size, i) => [
    size.place ? badge(placeName(size.place), placeHue(size.place)) : "host ops, program data and padding",
    right(figure(data, `sizes.${i}.ops`, "count")),
    right(figure(data, `sizes.${i}.bytes`, "count")),
    right(figure(data, `sizes.${i}.constants`, "count")),
  ]);
  rows.push([el("b", {}, "the file"), right(""), right(figure(data, "bytes", "count")), right("")]);
  const cells = data.weights.map((w) => ({
    name: w.name.includes(".") ? w.name : `${w.module || w.reader} ${w.shape.join("\u00d7")}`,
    bytes: w.bytes,
    hue: placeHue(w.place),
    reader: w.reader,
  }));
  return section(
    "size",
    "Size",
    table(["part", right("ops"), right("bytes"), right("constants, as planned")], rows),
    cells.length ? el("h3", {}, "Constants by size") : null,
    cells.length ? treemap(cells, show) : null,
  );
}

function timeSection(data) {
  const parts = [],
    timing = data.timing;
  if (timing)
    parts.push(
      el(
        "p",
        { class: "lead" },
        figure(data, "timing.how"),
        timing.seconds
          ? el(
              "span",
              {},
              ": ",
              figure(data, "timing.seconds", "ms"),
              ", best of ",
              figure(data, "timing.runs", "count"),
              " runs.",
            )
          : ".",
      ),
    );
  if (timing?.parts.length)
    parts.push(
      byKind(data),
      el("h3", {}, "Slowest ops"),
      bars(
        timing.parts
          .map((p, i) => ({
            name: p.name,
            size: p.seconds,
            hue: placeHue(p.place),
            shown: el("span", {}, figure(data, `timing.parts.${i}.seconds`, "ms"), ` ${placeName(p.place)}`),
          }))
          .filter((p) => p.size > 0)
          .sort((a, b) => b.size - a.size)
          .slice(0, 24),
      ),
    );
  data.performance.forEach((p, i) =>
    parts.push(...(p.layers ? estimate(data, p, i) : p.segments ? contents(data, p, i) : [])),
  );
  return section("time", "Time", ...(parts.length ? parts : [el("p", { class: "none" }, "not measured")]));
}

function byKind(data) {
  const rows = data.kinds
    .slice(0, 12)
    .map((kind, i) => [
      name(kind.name),
      badge(placeName(kind.place), placeHue(kind.place)),
      right(figure(data, `kinds.${i}.seconds`, "ms")),
      right(figure(data, `kinds.${i}.percent`, "percent")),
    ]);
  return table(["kind of op", "runs on", right("total"), right("share")], rows);
}

function estimate(data, p, i) {
  const at = `performance.${i}`,
    where = `${p.accelerator}, ${p.system_config}, ${p.memory_mode}`;
  const head = el(
    "p",
    { class: "lead" },
    `${p.compiler} estimates delegate ${i + 1} (${where}): `,
    figure(data, `${at}.cycles`, "count"),
    " cycles, ",
    figure(data, `${at}.seconds`, "ms"),
    "; SRAM ",
    figure(data, `${at}.sram_bytes`, "count"),
    " bytes.",
  );
  const rows = p.layers
    .map((l, k) => ({ l, k }))
    .sort((a, b) => b.l.cycles - a.l.cycles)
    .slice(0, 24)
    .map(({ l, k }) => ({
      name: `${l.op}  ${l.name}`,
      size: l.cycles,
      hue: l.limit === "npu" ? placeHue(i + 1) : "float",
      shown: el(
        "span",
        {},
        figure(data, `${at}.layers.${k}.cycles`, "count"),
        ` cycles${l.limit ? `, limited by ${l.limit}` : ""}`,
      ),
    }));
  return [head, bars(rows)];
}

function contents(data, p, i) {
  const sizes = Object.keys(p.bytes).map((kind) =>
    el("span", {}, ` ${kind} `, figure(data, `performance.${i}.bytes.${kind}`, "count"), " bytes;"),
  );
  return [
    el(
      "p",
      { class: "lead" },
      `Delegate ${i + 1} is a ${p.format} of `,
      figure(data, `performance.${i}.segments.length`, "count"),
      " segments:",
      ...sizes,
    ),
  ];
}

function recordedSection(data, show) {
  const recorded = data.recorded;
  if (!recorded)
    return section(
      "recorded",
      "Calibration",
      el("p", { class: "none" }, "this casting has no calibration statistics"),
    );
  const known = new Set(data.nodes.map((n) => n.name)),
    kinds = Object.entries(recorded.suspect_values);
  const rows = kinds.map(([kind, values]) => [
    kind,
    right(FORMATS.count(values.length)),
    el(
      "span",
      {},
      ...values.slice(0, 40).flatMap((v) => [known.has(v) ? link(v, show) : name(v), " "]),
      values.length > 40 ? `and ${values.length - 40} more` : null,
    ),
  ]);
  return section(
    "recorded",
    "Calibration",
    el(
      "p",
      { class: "lead" },
      figure(data, "recorded.batches", "count"),
      recorded.batches === 1 ? " batch, " : " batches, ",
      figure(data, "recorded.samples", "count"),
      " samples, ",
      figure(data, "recorded.values", "count"),
      " values.",
    ),
    ...recorded.notes.map((_, i) => el("p", { class: "warn" }, figure(data, `recorded.notes.${i}`))),
    rows.length
      ? table(["problem", right("values"), "names"], rows)
      : el("p", { class: "good" }, "No value was constant, unobserved or non-finite."),
  );
}
