// Draws one frame of the graph.
class Painter {
  constructor(view) {
    this.view = view;
    this.pen = view.canvas.getContext("2d");
    this.colors = {};
  }

  color(name) {
    return (this.colors[name] ??= color(name));
  }

  paint() {
    const { view, pen } = this,
      { canvas } = view,
      ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth,
      height = canvas.clientHeight;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.translate(view.left, view.top);
    pen.scale(view.scale, view.scale);
    this.visible = {
      x0: -view.left / view.scale,
      y0: -view.top / view.scale,
      x1: (width - view.left) / view.scale,
      y1: (height - view.top) / view.scale,
    };
    this.paintEdges();
    this.paintNodes();
  }

  inView(x0, y0, x1, y1) {
    const s = this.visible;
    return x1 >= s.x0 && x0 <= s.x1 && y1 >= s.y0 && y0 <= s.y1;
  }

  paintEdges() {
    const { view, pen } = this;
    pen.lineWidth = Math.max(1.2, 0.6 / view.scale);
    for (const edge of view.edges) {
      const [fx, fy, tx, ty] = [
        view.x[edge.from],
        view.y[edge.from] + NODE.height / 2,
        view.x[edge.to] + edge.aside,
        view.y[edge.to] - NODE.height / 2,
      ];
      if (Number.isNaN(fx) || Number.isNaN(tx)) continue;
      if (!this.inView(Math.min(fx, tx) - 240, Math.min(fy, ty), Math.max(fx, tx) + 240, Math.max(fy, ty))) continue;
      const touched = edge.from === view.picked || edge.to === view.picked;
      pen.strokeStyle = this.color(touched ? "accent" : "edge");
      pen.globalAlpha = touched || edge.points ? 1 : 0.6;
      this.line(edge, fx, fy, tx, ty);
      pen.globalAlpha = 1;
      if (edge.converts) this.mark(edge, tx, ty);
    }
  }

  line(edge, fx, fy, tx, ty) {
    const pen = this.pen;
    pen.beginPath();
    pen.moveTo(fx, fy);
    if (edge.points) {
      const way = edge.points.slice(1, -1);
      way.push([tx, ty]);
      let [px, py] = [fx, fy];
      for (const [x, y] of way) {
        const bend = (y - py) / 2;
        pen.bezierCurveTo(px, py + bend, x, y - bend, x, y);
        [px, py] = [x, y];
      }
    } else {
      const out = ty - fy > 300 ? 110 + Math.min(120, (ty - fy) / 60) : 0,
        bend = Math.min(90, Math.abs(ty - fy) / 2 + 8);
      pen.bezierCurveTo(fx + out, fy + bend, tx + out, ty - bend, tx, ty);
    }
    pen.stroke();
  }

  // Conversions on an edge: Q quantize, D dequantize, R requantize.
  mark(edge, tx, ty) {
    const pen = this.pen,
      hue = edge.converts === "requantize" ? "d4" : edge.converts === "quantize" ? "d1" : "float";
    pen.beginPath();
    pen.arc(tx, ty - 8, 6.5, 0, 7);
    pen.fillStyle = this.color(`${hue}-line`);
    pen.fill();
    if (this.view.scale < 0.4) return;
    pen.fillStyle = this.color("card");
    pen.font = "700 9px system-ui, sans-serif";
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.fillText(edge.converts[0].toUpperCase(), tx, ty - 7.5);
  }

  paintNodes() {
    const { view } = this,
      { width, height } = NODE;
    view.nodes.forEach((node, i) => {
      const x = view.x[i] - width / 2,
        y = view.y[i] - height / 2;
      if (!Number.isNaN(x) && this.inView(x, y, x + width, y + height)) this.node(node, x, y, i === view.picked);
    });
  }

  hue(node) {
    if (node.op === "input" || node.op === "output") return "io";
    if (this.view.by === "precision") return precisionHue(node.precision);
    return this.view.by === "error" ? sqnrHue(node.sqnr_db) : placeHue(node.place);
  }

  node(node, x, y, picked) {
    const { pen, view } = this,
      { width, height } = NODE,
      hue = this.hue(node);
    pen.beginPath();
    pen.roundRect(x, y, width, height, hue === "io" ? 20 : 6);
    pen.fillStyle = this.color(`${hue}-fill`);
    pen.fill();
    pen.lineWidth = picked ? 3 : 1.2;
    pen.strokeStyle = this.color(picked ? "accent" : `${hue}-line`);
    pen.setLineDash(hue === "gone" ? [4, 3] : []);
    pen.stroke();
    pen.setLineDash([]);
    if (view.scale < 0.36) return;
    if (hue !== "io") this.stripe(node, x, y);
    this.words(node, x, y, hue === "io");
  }

  // The stripe at the left shows the precision, whatever the fill shows.
  stripe(node, x, y) {
    this.pen.beginPath();
    this.pen.roundRect(x + 5, y + 7, 4, NODE.height - 14, 2);
    this.pen.fillStyle = this.color(`${precisionHue(node.precision)}-line`);
    this.pen.fill();
  }

  words(node, x, y, plain) {
    const pen = this.pen,
      left = x + (plain ? 14 : 16),
      room = NODE.width - (plain ? 28 : 24);
    pen.textAlign = "left";
    pen.textBaseline = "alphabetic";
    pen.fillStyle = this.color("ink");
    pen.font = "600 12.5px system-ui, sans-serif";
    pen.fillText(this.fitted(node.op, room - 38), left, y + 17);
    pen.fillStyle = this.color("soft");
    pen.font = "10.5px ui-monospace, SFMono-Regular, Menlo, monospace";
    pen.fillText(this.fitted(node.name, room), left, y + 31.5);
    pen.textAlign = "right";
    pen.fillText(node.precision.slice(0, 8).replace("float", "f"), x + NODE.width - 8, y + 16.5);
  }

  // Directional isolates keep right-to-left scripts inside their own node.
  fitted(text, room) {
    let shown = text.slice(0, 40);
    if (shown.length === text.length && this.pen.measureText(shown).width <= room) return `\u2066${shown}\u2069`;
    while (shown && this.pen.measureText(`${shown}\u2026`).width > room) shown = shown.slice(0, -1);
    return `\u2066${shown}\u2069\u2026`;
  }
}
