// Helpers: elements whose text is never markup, figures with their path in the data, number formats.
const NONE = "\u2013";

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value);
  }
  made.append(...children.filter((c) => c !== null && c !== undefined));
  return made;
}

function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http:" + "//www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

// JSON has no infinities: the data has them as strings.
function number(value) {
  return { inf: Infinity, "-inf": -Infinity, nan: NaN }[value] ?? value;
}

const FORMATS = {
  text: (v) => String(v),
  count: (v) => v.toLocaleString("en-US"),
  db: (v) => (number(v) >= 200 ? "exact" : `${number(v).toFixed(1)} dB`),
  ms: (v) => `${(1e3 * v).toPrecision(3)} ms`,
  percent: (v) => `${v.toFixed(1)} %`,
  seconds: (v) => `${v.toFixed(2)} s`,
  short: (v) => (typeof number(v) === "number" ? String(Number(number(v).toPrecision(4))) : String(v)),
  fine: (v) => (typeof number(v) === "number" ? String(Number(number(v).toPrecision(7))) : String(v)), // 0.999995
  shape: (v) => v.join("\u00d7") || "scalar",
};

// A figure on the page: its text, and as an attribute its path in the data.
function figure(data, path, as = "text") {
  const value = path.split(".").reduce((at, key) => (at === null || at === undefined ? at : at[key]), data);
  if (value === null || value === undefined || value === "") return el("span", {}, NONE);
  return el("span", { "data-path": path, "data-as": as, dir: as === "text" ? "auto" : null }, FORMATS[as](value));
}

function name(text) {
  return el("bdi", { class: "name", title: text.length > 60 ? text.slice(0, 300) : null }, text);
}

function table(head, rows, classes = "") {
  if (!rows.length) return el("p", { class: "none" }, "none");
  const cells = (tag, row) =>
    row.map((cell) => el(tag, cell?.right ? { class: "right" } : {}, cell?.right ?? cell ?? NONE));
  const top = el("thead", {}, el("tr", {}, ...cells("th", head)));
  const body = el("tbody", {}, ...rows.map((row) => el("tr", {}, ...cells("td", row))));
  return el("div", { class: "wide" }, el("table", { class: classes }, top, body));
}

const right = (cell) => ({ right: cell });

function section(id, title, ...children) {
  return el("section", { id }, el("h2", {}, title), ...children);
}

function color(variable) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${variable}`).trim();
}

const HUES = 6;
const placeName = (place) => (place === null ? "fused into a neighbour" : place === 0 ? "host" : `delegate ${place}`);
const placeHue = (place) => (place === null ? "gone" : place === 0 ? "host" : `d${((place - 1) % HUES) + 1}`);
const precisionHue = (p) =>
  p === "int8" || p === "uint8"
    ? "d1"
    : p === "int16"
      ? "d2"
      : p.startsWith("float") || p.startsWith("bfloat")
        ? "float"
        : "gone";
const sqnrHue = (db) =>
  db === null ? "gone" : number(db) >= 40 ? "e4" : number(db) >= 30 ? "e3" : number(db) >= 20 ? "e2" : "e1";

function badge(text, hue) {
  return el("span", { class: `badge hue-${hue}` }, text);
}
