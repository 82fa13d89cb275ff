// Graph layout by dagre, piece by piece. Runs in a worker, after the vendored library.
//
// Networks are long and have articulation points: values through which all later ops depend on the earlier ones. The
// graph is split there, each piece is laid out separately, and pieces of equal structure only once. So the time grows
// with the number of distinct pieces. Dagre's time grows with the square of a piece: once the work budget is spent, the
// remaining pieces are laid out in plain rows.
const WIDTH = 148,
  HEIGHT = 40,
  GAP = 34,
  ASIDE = 22,
  LONG = 48,
  MOST = 64,
  WORK = 120_000;

function placed(count, edges, post) {
  const short = edges.filter(([from, to]) => to - from <= LONG);
  const inner = byReader(count, short);
  const known = { shapes: new Map(), work: 0 };
  let bottom = 0,
    anchor = 0;
  for (const [first, last] of pieces(count, short)) {
    const piece = laidOut(first, last, inner, known);
    const dx = anchor - piece.x[0],
      dy = bottom - piece.top;
    post({
      first,
      x: piece.x.map((v) => v + dx),
      y: piece.y.map((v) => v + dy),
      edges: moved(piece.edges, first, dx, dy),
    });
    bottom = piece.bottom + dy + GAP;
    anchor = piece.next + dx;
  }
}

function byReader(count, edges) {
  const found = Array.from({ length: count }, () => []);
  for (const [from, to] of edges) found[to].push(from);
  return found;
}

// Split where no edge passes over; pieces that are still too long are split by node count.
function pieces(count, edges) {
  const over = new Int32Array(count + 1);
  for (const [from, to] of edges)
    if (to - from > 1) {
      over[from + 1]++;
      over[to]--;
    }
  const starts = [];
  for (let i = 0, open = 0; i < count; i++) {
    open += over[i];
    if (!open || i - starts[starts.length - 1] >= MOST) starts.push(i);
  }
  if (starts[0] !== 0) starts.unshift(0);
  return starts.map((start, i) => [start, i + 1 < starts.length ? starts[i + 1] : count]);
}

// The first node of the next piece is included, so that edges to it are routed and its position is known.
function laidOut(first, last, inner, known) {
  const within = [];
  for (let to = first; to <= Math.min(last, inner.length - 1); to++)
    for (const from of inner[to]) if (from >= first && from < to) within.push([from - first, to - first]);
  const shape = `${last - first};${within.join(";")}`;
  if (!known.shapes.has(shape)) {
    known.work += (last - first) ** 2;
    known.shapes.set(shape, (known.work < WORK ? byDagre : byRows)(last - first, within));
  }
  return known.shapes.get(shape);
}

function byRows(count, within) {
  const row = new Array(count + 1).fill(0),
    filled = [];
  for (const [from, to] of within) row[to] = Math.max(row[to], row[from] + 1);
  const places = row.map((r) => [((filled[r] = (filled[r] ?? 0) + 1) - 1) * (WIDTH + ASIDE), r * (HEIGHT + GAP)]);
  const [x, y] = [0, 1].map((axis) => places.slice(0, count).map((p) => p[axis]));
  return { x, y, edges: [], top: -HEIGHT / 2, bottom: Math.max(...y) + HEIGHT / 2, next: x[0] };
}

function byDagre(count, within) {
  const graph = new dagre.graphlib.Graph({ multigraph: true });
  graph.setGraph({ nodesep: ASIDE, ranksep: GAP, ranker: "network-simplex" });
  for (let i = 0; i <= count; i++) graph.setNode(String(i), { width: WIDTH, height: HEIGHT });
  within.forEach(([from, to], k) => graph.setEdge(String(from), String(to), {}, String(k)));
  dagre.layout(graph);
  const nodes = Array.from({ length: count + 1 }, (_, i) => graph.node(String(i)));
  const [x, y] = ["x", "y"].map((axis) => nodes.slice(0, count).map((n) => n[axis]));
  const edges = within.map(([from, to], k) => [
    from,
    to,
    graph.edge(String(from), String(to), String(k)).points.map((p) => [p.x, p.y]),
  ]);
  const linked = within.some(([, to]) => to === count);
  return {
    x,
    y,
    edges,
    top: Math.min(...y) - HEIGHT / 2,
    bottom: Math.max(...y) + HEIGHT / 2,
    next: linked ? nodes[count].x : x[0],
  };
}

function moved(edges, first, dx, dy) {
  return edges.map(([from, to, points]) => [from + first, to + first, points.map(([x, y]) => [x + dx, y + dy])]);
}

if (typeof document === "undefined") {
  onmessage = ({ data }) => {
    placed(data.count, data.edges, (piece) => postMessage(piece));
    postMessage({ done: true });
  };
}
