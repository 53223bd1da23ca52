// Building and updating elements. Whatever text comes in is set as text, never read as markup.

const SVG = "http://www.w3.org/2000/svg";

export function el(tag, attributes = {}, ...children) {
  return into(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return into(document.createElementNS(SVG, tag), attributes, children);
}

function into(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// A child of `parent` for each of `keys`, in their order; made once, kept while its key is there.
export function keyed(parent, keys, make) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const children = keys.map((key) => {
    const child = known.get(key) ?? make(key);
    child.dataset.key = key;
    known.delete(key);
    return child;
  });
  for (const gone of known.values()) gone.remove();
  children.forEach((child, place) => {
    if (parent.children[place] !== child) parent.insertBefore(child, parent.children[place] ?? null);
  });
  return children;
}

// Pairs of a list of figures: [[name, value, unit]].
export function figures(list, pairs) {
  const children = keyed(list, pairs.map(([name]) => name), (name) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, el("span"), " ", el("small"))));
  children.forEach((child, place) => {
    const [, value, unit = "", mood = ""] = pairs[place];
    const [figure, small] = child.lastChild.children;
    say(figure, value);
    say(small, unit);
    figure.className = mood;
  });
}

// The body of a table: `rows` are lists of cells, each a string or nodes. What did not change
// stays as it is, so that nothing that was selected or focused is lost.
export function fill(table, rows, empty) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  if (!rows.length) {
    if (!body.querySelector(".empty")) {
      const cell = el("td", { class: "empty", role: "cell", colspan: heads.length }, empty);
      body.replaceChildren(el("tr", { role: "row" }, cell));
    }
    return;
  }
  if (body.querySelector(".empty")) body.replaceChildren();
  while (body.rows.length > rows.length) body.lastChild.remove();
  rows.forEach((cells, place) => {
    if (!body.rows[place]) body.append(emptyRow(heads));
    [...body.rows[place].cells].forEach((cell, column) => put(cell, cells[column]));
  });
}

function emptyRow(heads) {
  return el("tr", { role: "row" }, ...heads.map((head, column) => {
    const kind = [...head.classList].join(" ");
    if (!column) return el("th", { scope: "row", role: "rowheader", class: kind });
    return el("td", { role: "cell", class: kind, "data-label": head.textContent });
  }));
}

function put(cell, content) {
  if (typeof content === "string") {
    if (cell.children.length) cell.replaceChildren(content);
    else say(cell, content);
    return;
  }
  const nodes = [content].flat();
  const fresh = nodes.map((node) => node.outerHTML ?? String(node)).join("");
  if (cell.shown !== fresh || !cell.children.length) cell.replaceChildren(...nodes);
  cell.shown = fresh;
}

export function badge(text, mood) {
  return el("span", { class: `badge ${mood}` }, text);
}

export function small(text) {
  return el("small", {}, text);
}
