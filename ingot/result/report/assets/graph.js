// The graph on a canvas. Only visible nodes are drawn, so thousands of nodes scroll smoothly.
const NODE = { width: 148, height: 40 };

class GraphView {
  constructor(nodes, onPick) {
    this.nodes = nodes;
    this.onPick = onPick;
    this.canvas = el("canvas", {
      class: "graph",
      tabindex: "0",
      role: "img",
      "aria-label": "the graph of the program; the search box above reaches every node",
    });
    this.at = new Map(nodes.map((n, i) => [n.name, i]));
    this.x = new Float64Array(nodes.length).fill(NaN);
    this.y = new Float64Array(nodes.length).fill(NaN);
    this.edges = this.links();
    this.scale = 1;
    this.left = 0;
    this.top = 0;
    this.highest = 0;
    this.deepest = 0;
    this.picked = -1;
    this.by = "place";
    this.ready = false;
    this.listen();
  }

  links() {
    return this.nodes.flatMap((node, to) =>
      node.reads
        .map((read, k) => ({
          from: this.at.get(read.value),
          to,
          aside: aside(k, node.reads.length),
          converts: read.converts,
          points: null,
        }))
        .filter((edge) => edge.from !== undefined),
    );
  }

  // Inputs come right before their first reader; everything else in graph order.
  order() {
    const first = this.nodes.map((_, i) => i);
    for (const edge of [...this.edges].reverse())
      if (this.nodes[edge.from].op === "input") first[edge.from] = edge.to - 0.5;
    return this.nodes.map((_, i) => i).sort((a, b) => first[a] - first[b] || a - b);
  }

  // The layout runs in a worker; finished pieces are drawn while the rest is computed.
  layOut(source) {
    const order = this.order(),
      rank = new Array(order.length);
    order.forEach((node, i) => {
      rank[node] = i;
    });
    const pairs = new Map(this.edges.map((e) => [`${rank[e.from]},${rank[e.to]}`, e]));
    const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    const worker = new Worker(url);
    worker.onmessage = ({ data }) => this.take(data, order, pairs, worker, url);
    worker.postMessage({ count: order.length, edges: [...pairs.keys()].map((k) => k.split(",").map(Number)) });
  }

  take(piece, order, pairs, worker, url) {
    if (piece.done) {
      worker.terminate();
      URL.revokeObjectURL(url);
      this.ready = true;
      this.canvas.dataset.ready = "true";
    } else {
      piece.x.forEach((x, i) => {
        this.x[order[piece.first + i]] = x;
        this.y[order[piece.first + i]] = piece.y[i];
      });
      this.highest = Math.min(this.highest, ...piece.y);
      this.deepest = Math.max(this.deepest, ...piece.y);
      for (const [from, to, points] of piece.edges) pairs.get(`${from},${to}`).points = points;
      if (piece.first === 0) this.home();
    }
    this.draw();
  }

  home() {
    const width = this.canvas.clientWidth,
      first = this.x.findIndex((x) => !Number.isNaN(x));
    this.scale = width < 500 ? 0.75 : 0.9;
    this.left = width / 2 - this.x[first] * this.scale;
    this.top = 34 - Math.min(...this.y.filter((y) => !Number.isNaN(y))) * this.scale;
  }

  fit() {
    const xs = this.x.filter((v) => !Number.isNaN(v)),
      ys = this.y.filter((v) => !Number.isNaN(v));
    const [x0, x1, y0, y1] = [least(xs), most(xs), least(ys), most(ys)];
    const { clientWidth: width, clientHeight: height } = this.canvas;
    this.scale = Math.min(1, width / (x1 - x0 + NODE.width + 40), height / (y1 - y0 + NODE.height + 40));
    this.left = width / 2 - ((x0 + x1) / 2) * this.scale;
    this.top = height / 2 - ((y0 + y1) / 2) * this.scale;
    this.draw();
  }

  zoom(factor, x = this.canvas.clientWidth / 2, y = this.canvas.clientHeight / 2) {
    const scale = Math.min(3, Math.max(0.004, this.scale * factor)),
      real = scale / this.scale;
    this.left = x - (x - this.left) * real;
    this.top = y - (y - this.top) * real;
    this.scale = scale;
    this.draw();
  }

  pick(index, centre) {
    this.picked = index;
    if (centre && !Number.isNaN(this.x[index])) {
      this.scale = Math.max(this.scale, 0.7);
      this.left = this.canvas.clientWidth / 2 - this.x[index] * this.scale;
      this.top = this.canvas.clientHeight / 2 - this.y[index] * this.scale;
    }
    this.draw();
    this.onPick(index);
  }

  hit(px, py) {
    const x = (px - this.left) / this.scale,
      y = (py - this.top) / this.scale;
    return this.nodes.findIndex(
      (_, i) => Math.abs(this.x[i] - x) <= NODE.width / 2 && Math.abs(this.y[i] - y) <= NODE.height / 2,
    );
  }

  listen() {
    const canvas = this.canvas,
      held = new Map();
    let travelled = 0;
    canvas.addEventListener(
      "wheel",
      (e) => {
        if (!e.ctrlKey && !e.metaKey && !e.shiftKey && this.ends(e.deltaY)) return; // scroll the page
        e.preventDefault();
        if (e.ctrlKey || e.metaKey) this.zoom(Math.exp(-e.deltaY / 120), e.offsetX, e.offsetY);
        else if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
          this.left -= e.deltaX || e.deltaY;
          this.draw();
        } else {
          this.top -= e.deltaY;
          this.draw();
        }
      },
      { passive: false },
    );
    canvas.addEventListener("pointerdown", (e) => {
      held.set(e.pointerId, e);
      travelled = 0;
      canvas.setPointerCapture(e.pointerId);
    });
    canvas.addEventListener("pointermove", (e) => {
      const before = held.get(e.pointerId);
      if (!before) return;
      const other = [...held.values()].find((p) => p.pointerId !== e.pointerId);
      if (other) this.pinch(before, e, other);
      else {
        this.left += e.clientX - before.clientX;
        this.top += e.clientY - before.clientY;
      }
      travelled += Math.abs(e.clientX - before.clientX) + Math.abs(e.clientY - before.clientY);
      held.set(e.pointerId, e);
      this.draw();
    });
    const release = (e) => {
      const box = canvas.getBoundingClientRect(),
        found = this.hit(e.clientX - box.left, e.clientY - box.top);
      if (held.delete(e.pointerId) && e.type === "pointerup" && travelled < 6 && found >= 0) this.pick(found, false);
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("keydown", (e) => this.key(e));
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  // Whether the graph ends within view in that direction.
  ends(down) {
    return down > 0
      ? this.top + (this.deepest + NODE.height) * this.scale <= this.canvas.clientHeight
      : this.top + (this.highest - NODE.height) * this.scale >= 0;
  }

  pinch(before, now, other) {
    const apart = (p) => Math.hypot(p.clientX - other.clientX, p.clientY - other.clientY) || 1;
    const box = this.canvas.getBoundingClientRect();
    this.zoom(
      apart(now) / apart(before),
      (now.clientX + other.clientX) / 2 - box.left,
      (now.clientY + other.clientY) / 2 - box.top,
    );
  }

  key(e) {
    const step = { ArrowUp: [0, 60], ArrowDown: [0, -60], ArrowLeft: [60, 0], ArrowRight: [-60, 0] }[e.key];
    const factor = { "+": 1.25, "=": 1.25, "-": 0.8 }[e.key];
    if (step) {
      this.left += step[0];
      this.top += step[1];
      this.draw();
      e.preventDefault();
    } else if (factor) this.zoom(factor);
  }

  draw() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      new Painter(this).paint();
    });
  }
}

// Where an edge ends on the top side of its reader: operands in their order.
const aside = (k, count) => (k - (count - 1) / 2) * Math.min(20, (NODE.width - 24) / count);
const least = (all) => all.reduce((a, b) => Math.min(a, b), Infinity);
const most = (all) => all.reduce((a, b) => Math.max(a, b), -Infinity);
