// Elements and figures. Every text from outside becomes a text node; nothing is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

export function el(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "value") made.value = value;
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.append(...children);
  return made;
}

// Gives an element these children, and changes only what differs: focus, selection and scroll positions
// stay. Only for children without listeners.
export function fill(box, ...children) {
  merge(box, el("div", {}, ...children));
}

function merge(old, made) {
  const wanted = [...made.childNodes];
  wanted.forEach((next, place) => {
    const known = old.childNodes[place];
    if (known === undefined) old.append(next);
    else if (known.nodeName !== next.nodeName) known.replaceWith(next);
    else if (next.nodeType === Node.TEXT_NODE) {
      if (known.data !== next.data) known.data = next.data;
    } else {
      for (const { name } of [...known.attributes]) if (!next.hasAttribute(name)) known.removeAttribute(name);
      for (const { name, value } of next.attributes) if (known.getAttribute(name) !== value) known.setAttribute(name, value);
      merge(known, next);
    }
  });
  while (old.childNodes.length > wanted.length) old.lastChild.remove();
}

export function count(number) {
  return number === null || number === undefined ? "–" : Math.round(number).toLocaleString("en-US");
}

export function rate(number) {
  return number.toLocaleString("en-US", { maximumFractionDigits: 1 }) + "/s";
}

export function bytes(number) {
  if (number === null || number === undefined) return "–";
  let size = number;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (Math.abs(size) < 1024) return `${unit === "B" ? size : size.toFixed(1)} ${unit}`;
    size /= 1024;
  }
  return `${size.toFixed(1)} TiB`;
}

export function span(ms) {
  const seconds = Math.max(0, ms / 1000);
  for (const [length, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= 2 * length) return `${count(seconds / length)} ${unit}`;
  }
  return `${seconds.toFixed(1)} s`;
}

export function ago(ms, now) {
  return ms ? `${span(now - ms)} ago` : "never";
}

export function moment(ms) {
  return ms ? new Date(ms).toISOString().replace("T", " ").slice(0, 19) + "Z" : "–";
}

export const STATES = {
  stuck: "stuck", "at-risk": "at risk", waiting: "waiting", fine: "fine",
};

export const STATES_OF_ENTRIES = {
  acked: "acked", held: "with a consumer", queued: "to be delivered again", delayed: "delayed",
  nacked: "held back after a negative ack", unread: "not delivered yet",
};

// For what is drawn: a colour of the style sheet, light or dark.
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export function badge(severity) {
  return el("span", { class: `badge ${severity}` }, STATES[severity] ?? severity);
}

// Before its first consumer a subscription has none.
export function typeOf(row) {
  return row.type === "None" ? null : el("span", { class: "dim" }, ` ${row.type}`);
}

// A line without axes, for a cell of a table; null if there is no history.
export function sparkline(points, limit, width = 120, height = 26) {
  if (points.length < 2) return null;
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "spark", role: "img" });
  const first = points[0][0], last = points[points.length - 1][0] || first + 1;
  const top = Math.max(limit || 0, ...points.map((point) => point[1]), 1);
  const x = (at) => ((at - first) / Math.max(1, last - first)) * (width - 2) + 1;
  const y = (value) => height - 2 - (value / top) * (height - 4);
  const line = points.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  if (limit) drawn.append(svg("line", { x1: 0, x2: width, y1: y(limit), y2: y(limit), class: "limit" }));
  drawn.append(svg("polyline", { points: line }));
  drawn.append(svg("title", {}, `${count(points[0][1])} to ${count(points[points.length - 1][1])} ranges in ${span(last - first)}`));
  return drawn;
}

export function facts(...pairs) {
  return el("dl", { class: "facts" }, pairs.filter(Boolean).map(
    ([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value ?? "–"))));
}

export function card(title, ...children) {
  return el("section", { class: "card" }, el("h2", {}, title), ...children);
}

export function wide(made) {
  made.classList.add("wide");
  return made;
}

// Short tables with a fixed number of rows; the long one is Tabulator's.
export function table(heads, rows, none = "none") {
  if (!rows.length) return el("p", { class: "dim" }, none);
  return el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell) => el("td", {}, cell)))))));
}
