// The sections with measurements: errors, sizes, times, and what was recorded.
function errorSection(data, show) {
  const points = data.nodes
    .map((n, i) => [i, n.sqnr_db === null ? NaN : number(n.sqnr_db), n.name])
    .filter((p) => !Number.isNaN(p[1]));
  if (!points.length)
    return section("error", "Error along the network", el("p", { class: "none" }, "not known for this casting"));
  const worst = data.falls
    .slice(0, 8)
    .map((fall, i) => [
      link(fall.name, show),
      el("code", {}, figure(data, `falls.${i}.op`)),
      el("code", {}, figure(data, `falls.${i}.source`)),
      right(figure(data, `falls.${i}.sqnr_db`, "db")),
      right(figure(data, `falls.${i}.below_db`, "db")),
    ]);
  return section(
    "error",
    "Error along the network",
    el(
      "p",
      { class: "lead" },
      "Signal to noise of every float value in the quantized graph against the float graph, on one batch.",
    ),
    errorChart([{ name: "", points }], data.nodes.length, show),
    el("h3", {}, "Where it falls"),
    table(["value", "op", "your line", right("there"), right("below what it reads")], worst),
  );
}

function sizeSection(data, show) {
  const rows = data.sizes.map((size, i) => [
    size.place ? badge(placeName(size.place), placeHue(size.place)) : "host ops, tables and padding",
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
    table(["part", right("ops"), right("bytes"), right("of it constants, as planned")], rows),
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
              ", of ",
              figure(data, "timing.runs", "count"),
              " runs.",
            )
          : ".",
      ),
    );
  if (timing?.parts.length)
    parts.push(
      byKind(data),
      el("h3", {}, "The longest ops"),
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
  return section("time", "Time", ...(parts.length ? parts : [el("p", { class: "none" }, "not known")]));
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
  return table(["kind of op", "where", right("together"), right("share")], rows);
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
  const held = Object.keys(p.bytes).map((kind) =>
    el("span", {}, ` ${kind} `, figure(data, `performance.${i}.bytes.${kind}`, "count"), " bytes;"),
  );
  return [
    el(
      "p",
      { class: "lead" },
      `Delegate ${i + 1} is a ${p.format} of `,
      figure(data, `performance.${i}.segments.length`, "count"),
      " segments:",
      ...held,
    ),
  ];
}

function recordedSection(data, show) {
  const seen = data.recorded;
  if (!seen)
    return section(
      "recorded",
      "Recorded",
      el("p", { class: "none" }, "nothing was recorded, or it is not kept with this casting"),
    );
  const known = new Set(data.nodes.map((n) => n.name)),
    kinds = Object.entries(seen.lacking);
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
    "Recorded",
    el(
      "p",
      { class: "lead" },
      figure(data, "recorded.batches", "count"),
      seen.batches === 1 ? " batch, " : " batches, ",
      figure(data, "recorded.samples", "count"),
      " samples, ",
      figure(data, "recorded.values", "count"),
      " values.",
    ),
    ...seen.notes.map((_, i) => el("p", { class: "warn" }, figure(data, `recorded.notes.${i}`))),
    rows.length
      ? table(["too little", right("values"), "which"], rows)
      : el("p", { class: "good" }, "No value was constant, unseen or not finite."),
  );
}
