// The search for a goal: each plan that was measured, by cost and by the value of the metric; and why it ended.
function goalSection(data) {
  const goal = data.goal;
  const verdict = el(
    "p",
    { class: goal.met ? "good" : "bad" },
    goal.met ? "The artefact meets the goal." : "The artefact does not meet the goal.",
  );
  return section(
    "goal",
    "Goal",
    verdict,
    goalTable(data),
    ...goal.values.map((_, i) => frontChart(goal, i)),
    stepsTable(data),
    el("p", {}, "Search: ", figure(data, "goal.ended"), "."),
    goal.limits.length
      ? el("ul", {}, ...goal.limits.map((_, i) => el("li", {}, figure(data, `goal.limits.${i}`))))
      : null,
  );
}

function goalTable(data) {
  const rows = data.goal.values.map((v, i) => [
    name(v.metric),
    right(figure(data, `goal.values.${i}.float_value`, "fine")),
    right(el("span", {}, v.higher_is_better ? "at least " : "at most ", figure(data, `goal.values.${i}.bar`, "fine"))),
    right(figure(data, `goal.values.${i}.value`, "fine")),
  ]);
  return table(["metric", right("float model"), right("goal"), right("artefact")], rows, "narrow");
}

// What each plan costs more than the one before, and what that buys.
function stepsTable(data) {
  const steps = data.goal.steps;
  const rows = steps.map((s, i) => [
    right(figure(data, `goal.steps.${i}.estimated_time`, "short")),
    ...s.values.map((v, k) =>
      right(
        el("span", {}, figure(data, `goal.steps.${i}.values.${k}.value`, "fine"), i ? bought(steps[i - 1].values[k], v) : ""),
      ),
    ),
    Object.entries(s.precisions)
      .map(([precision, count]) => `${count} ${precision}`)
      .join(", "),
    right(figure(data, `goal.steps.${i}.noise_vs_latency`, "short")),
    s.met ? el("span", { class: "good" }, "met") : el("span", { class: "bad" }, "not met"),
  ]);
  const metrics = data.goal.values.map((v) => right(v.metric));
  return table([right("cost"), ...metrics, "ops", right("price of noise"), "goal"], rows);
}

function bought(before, after) {
  const gain = number(after.value) - number(before.value);
  return Number.isFinite(gain) && gain !== 0 ? ` (${gain > 0 ? "+" : ""}${FORMATS.short(gain)})` : "";
}

function frontChart(goal, which) {
  const width = 640,
    height = 220,
    pad = { left: 64, right: 16, top: 14, bottom: 34 };
  const { metric, bar, float_value: ideal } = goal.values[which];
  const points = goal.steps
    .map((s) => ({ cost: s.estimated_time, value: number(s.values[which].value), met: s.met }))
    .filter((p) => Number.isFinite(p.value));
  const measured = [...points.map((p) => p.value), number(bar)],
    span = most(measured) - least(measured);
  // A float model that is far above all plans (an SQNR of 200 dB) would press them onto one line.
  const near = number(ideal) - most(measured) <= span && least(measured) - number(ideal) <= span;
  const shown = near ? [...measured, number(ideal)] : measured;
  const [low, high, wide] = [least(shown), most(shown), most(points.map((p) => p.cost))];
  const x = (cost) => pad.left + ((cost - 1) / Math.max(1e-9, wide - 1)) * (width - pad.left - pad.right);
  const y = (v) => height - pad.bottom - ((v - low) / (high - low || 1)) * (height - pad.top - pad.bottom);
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "errors front", role: "img" });
  drawn.append(svg("title", {}, `${metric} of each plan by its cost`));
  for (const [value, text] of [
    [number(bar), `goal ${FORMATS.fine(bar)}`],
    [near ? number(ideal) : NaN, `float ${FORMATS.fine(ideal)}`],
  ])
    if (Number.isFinite(value))
      drawn.append(
        svg("line", { x1: pad.left, x2: width - pad.right, y1: y(value), y2: y(value), class: "grid" }),
        label(pad.left + 4, y(value) - 4, text, 0, "soft"),
      );
  drawn.append(
    label(pad.left, height - 18, FORMATS.short(1), 0, "soft"),
    label(width - pad.right, height - 18, FORMATS.short(wide), 1, "soft"),
    label(width - pad.right, height - 4, "cost, in units of the cheapest plan", 1, "soft"),
    label(4, 12, metric, 0, "soft"),
    svg("polyline", { points: points.map((p) => `${x(p.cost).toFixed(1)},${y(p.value).toFixed(1)}`).join(" "), class: "line line-0" }),
    ...points.map((p) => svg("circle", { cx: x(p.cost), cy: y(p.value), r: 4, class: p.met ? "dot-met" : "dot-missed" })),
  );
  return el("div", { class: "scroll-chart" }, drawn);
}
