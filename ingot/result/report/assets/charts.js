// Charts: the histogram of a value, SQNR along the network, a treemap of sizes, bars.
function histogramChart(spread) {
  const width = 320,
    height = 96,
    floor = 74,
    across = spread.high - spread.low || 1;
  const at = (v) => ((number(v) - spread.low) / across) * width,
    top = most(spread.bins) || 1;
  const drawn = svg("svg", { viewBox: `-8 0 ${width + 16} ${height}`, class: "spread", role: "img" });
  spread.bins.forEach((share, i) => {
    const tall = share ? Math.max(1, Math.sqrt(share / top) * (floor - 8)) : 0,
      wide = width / spread.bins.length;
    drawn.append(
      svg("rect", { x: i * wide, y: floor - tall, width: Math.max(0.5, wide - 1), height: tall, class: "bar" }),
    );
  });
  drawn.append(svg("line", { x1: 0, x2: width, y1: floor, y2: floor, class: "axis" }));
  for (const [end, side] of (spread.chosen ?? []).map((v, i) => [v, i]))
    drawn.append(
      svg("line", { x1: at(end), x2: at(end), y1: 2, y2: floor + 4, class: "chosen" }),
      label(at(end), floor + 15, FORMATS.short(end), side, "chosen-text"),
    );
  if (!spread.chosen)
    drawn.append(
      label(0, floor + 15, FORMATS.short(spread.low), 0, "soft"),
      label(width, floor + 15, FORMATS.short(spread.high), 1, "soft"),
    );
  return drawn;
}

function label(x, y, text, side, kind) {
  return svg("text", { x, y, class: kind, "text-anchor": side ? "end" : "start" }, text);
}

// Lines over the values in graph order: [{name, points: [[index, dB, value]]}].
function sqnrChart(lines, count, onPick) {
  const width = 960,
    height = 240,
    pad = { left: 44, right: 12, top: 12, bottom: 22 };
  const all = lines.flatMap((l) => l.points.map((p) => Math.min(p[1], 80)));
  const low = Math.min(0, Math.floor(least(all) / 10) * 10),
    high = Math.max(50, Math.ceil(most(all) / 10) * 10);
  const x = (i) => pad.left + (i / Math.max(1, count - 1)) * (width - pad.left - pad.right);
  const y = (db) =>
    pad.top + ((high - Math.max(low, Math.min(high, db))) / (high - low)) * (height - pad.top - pad.bottom);
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "errors", role: "img" });
  for (let db = low; db <= high; db += 10)
    drawn.append(
      svg("line", { x1: pad.left, x2: width - pad.right, y1: y(db), y2: y(db), class: "grid" }),
      label(pad.left - 6, y(db) + 3.5, `${db}`, 1, "soft"),
    );
  drawn.append(
    label(pad.left, height - 5, "first value", 0, "soft"),
    label(width - pad.right, height - 5, "last value", 1, "soft"),
    label(4, 10, "dB", 0, "soft"),
  );
  for (const [k, line] of lines.entries()) {
    drawn.append(
      svg("polyline", {
        points: line.points.map(([i, db]) => `${x(i).toFixed(1)},${y(db).toFixed(1)}`).join(" "),
        class: `line line-${k}`,
      }),
    );
    if (line.points.length <= 400)
      for (const [i, db] of line.points)
        drawn.append(svg("circle", { cx: x(i).toFixed(1), cy: y(db).toFixed(1), r: 2.2, class: `dot dot-${k}` }));
  }
  return hovering(drawn, lines, x, y, onPick);
}

function hovering(drawn, lines, x, y, onPick) {
  const readout = el(
    "p",
    { class: "readout", "aria-live": "off" },
    `Point at the line to read a value${onPick ? "; click to show it in the graph" : ""}.`,
  );
  const spot = svg("circle", { r: 5, class: "spot", visibility: "hidden" });
  drawn.append(spot);
  const near = (e) => {
    const box = drawn.getBoundingClientRect(),
      at = ((e.clientX - box.left) / box.width) * 960,
      up = ((e.clientY - box.top) / box.height) * 240;
    const far = (p) => (x(p[0]) - at) ** 2 + ((y(p[1]) - up) / 4) ** 2;
    return lines
      .flatMap((l) => l.points.map((p) => [...p, l.name]))
      .reduce((a, b) => (a && far(a) <= far(b) ? a : b), null);
  };
  drawn.addEventListener("pointermove", (e) => {
    const point = near(e);
    if (!point) return;
    for (const [key, value] of [
      ["cx", x(point[0])],
      ["cy", y(point[1])],
      ["visibility", "visible"],
    ])
      spot.setAttribute(key, value);
    readout.replaceChildren(name(point[2]), ` ${FORMATS.db(point[1])}${point[3] ? `, ${point[3]}` : ""}`);
  });
  drawn.addEventListener("click", (e) => {
    const point = near(e);
    if (point && onPick) onPick(point[2]);
  });
  return el("div", { class: "scroll-chart" }, drawn, readout);
}

// Squarified treemap: [{name, bytes, hue}] -> rectangles whose areas are proportional to the bytes.
function treemap(parts, onPick) {
  const width = 960,
    height = 340,
    drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "treemap", role: "img" });
  const sorted = parts.filter((p) => p.bytes > 0).sort((a, b) => b.bytes - a.bytes),
    total = sorted.reduce((a, p) => a + p.bytes, 0);
  for (const { part, x, y, w, h } of squarified(sorted, total, width, height)) {
    const tip = `${part.name.slice(0, 200)}: ${FORMATS.count(part.bytes)} bytes, ${((100 * part.bytes) / total).toFixed(1)} %`;
    const box = svg(
      "g",
      onPick && part.reader ? { class: "cell linked", onclick: () => onPick(part.reader) } : { class: "cell" },
    );
    box.append(
      svg("rect", {
        x: x + 0.75,
        y: y + 0.75,
        width: Math.max(0.5, w - 1.5),
        height: Math.max(0.5, h - 1.5),
        class: `fill-${part.hue}`,
      }),
      svg("title", {}, tip),
    );
    if (w > 58 && h > 30)
      box.append(
        label(x + 7, y + 17, clipped(part.name, w - 12, 6.4), 0, "cell-name"),
        label(x + 7, y + 31, FORMATS.count(part.bytes), 0, "cell-bytes"),
      );
    drawn.append(box);
  }
  return drawn;
}

// Clipped at the start: module paths differ at their ends.
const clipped = (text, room, each) =>
  text.length * each <= room ? text : `\u2026${text.slice(-Math.max(1, Math.floor(room / each) - 1))}`;

function* squarified(parts, total, width, height) {
  let [x, y, w, h] = [0, 0, width, height],
    rest = [...parts];
  const unit = (width * height) / (total || 1);
  while (rest.length) {
    const short = Math.min(w, h),
      row = [];
    const worst = (r) => {
      const sum = r.reduce((a, p) => a + p.bytes * unit, 0);
      return r.reduce(
        (m, p) => Math.max(m, (short ** 2 * p.bytes * unit) / sum ** 2, sum ** 2 / (short ** 2 * p.bytes * unit)),
        0,
      );
    };
    do row.push(rest.shift());
    while (rest.length && worst([...row, rest[0]]) <= worst(row));
    const deep = row.reduce((a, p) => a + p.bytes * unit, 0) / short;
    let along = 0;
    for (const part of row) {
      const long = (part.bytes * unit) / deep;
      yield w < h ? { part, x: x + along, y, w: long, h: deep } : { part, x, y: y + along, w: deep, h: long };
      along += long;
    }
    if (w < h) {
      y += deep;
      h -= deep;
    } else {
      x += deep;
      w -= deep;
    }
  }
}

// Horizontal bars with names, in the given order.
function bars(rows) {
  const longest = most(rows.map((r) => r.size)) || 1;
  return el(
    "div",
    { class: "bars" },
    ...rows.flatMap((r) => {
      const bar = el("span", { class: `bar-fill fillbg-${r.hue}` });
      bar.style.width = `${Math.max(0.4, (100 * r.size) / longest)}%`;
      return [
        el("span", { class: "bar-name" }, name(r.name)),
        el("span", { class: "bar-track" }, bar),
        el("span", { class: "bar-text" }, r.shown),
      ];
    }),
  );
}
