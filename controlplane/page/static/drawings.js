// What is drawn by hand: the variant mix, arenas, memory, waterfalls. Each has its text beside it.

import { el, keyed, say, svg } from "./dom.js";
import { mebibytes } from "./words.js";

const HEIGHT = 150;
const BOTTOM = 18;
const LEFT = 34;
const SPAN_S = 300;
const BUCKET_S = 5;

// From the most accurate variant, dark violet, to the fastest, light green.
export function shade(place, count) {
  const share = count > 1 ? place / (count - 1) : 0;
  return `hsl(${265 - 105 * share} 48% ${40 + 24 * share}%)`;
}

export function swatch(kind, colour) {
  const square = svg("rect", { width: 12, height: 12, rx: 2 });
  if (kind) square.classList.add(kind);
  if (colour) square.style.fill = colour;
  return svg("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" }, square);
}

function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value);
}

// `parts` are series [{values, kind, colour}] of rates for each bucket, the oldest first.
export function drawMix(chart, parts, label) {
  const width = Math.max(240, chart.parentElement.clientWidth);
  const buckets = SPAN_S / BUCKET_S;
  const totals = Array.from({ length: buckets }, (_, k) => parts.reduce((sum, p) => sum + p.values[k], 0));
  const top = ceiling(Math.max(1, ...totals));
  const room = HEIGHT - BOTTOM - 8;
  const y = (value) => HEIGHT - BOTTOM - (value / top) * room;
  const step = (width - LEFT) / buckets;
  const drawn = [];
  for (const value of [0, top / 2, top]) {
    drawn.push(svg("line", { class: "grid", x1: LEFT, x2: width, y1: y(value), y2: y(value) }));
    drawn.push(svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, String(value)));
  }
  const below = totals.map(() => 0);
  for (const part of parts) {
    part.values.forEach((value, k) => {
      if (!value) return;
      const from = y(below[k]);
      below[k] += value;
      const bar = svg("rect", {
        x: LEFT + k * step + 0.5, width: Math.max(0.5, step - 1), y: y(below[k]), height: from - y(below[k]),
      });
      if (part.kind) bar.classList.add(part.kind);
      if (part.colour) bar.style.fill = part.colour;
      drawn.push(bar);
    });
  }
  drawn.push(svg("text", { x: LEFT, y: HEIGHT - 4 }, "5 min ago"));
  drawn.push(svg("text", { x: width, y: HEIGHT - 4, "text-anchor": "end" }, "now"));
  chart.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  chart.setAttribute("height", HEIGHT);
  chart.replaceChildren(svg("title", {}, label), ...drawn);
}

// Sums of samples in the chart's buckets as rates; `pick` gives one sample's count.
export function bucketed(samples, newest, pick) {
  const buckets = SPAN_S / BUCKET_S;
  const counts = Array(buckets).fill(0);
  const seconds = Array(buckets).fill(0);
  const end = Math.ceil(newest / BUCKET_S);
  for (const sample of samples) {
    const place = buckets - 1 - (end - Math.ceil(sample.at_s / BUCKET_S));
    if (place < 0) continue;
    counts[place] += pick(sample);
    seconds[place] += sample.seconds;
  }
  return counts.map((count, k) => (seconds[k] ? count / seconds[k] : 0));
}

export function legend(list, entries) {
  const items = keyed(list, entries.map((entry) => entry.name), (name) =>
    el("li", {}, swatch("", ""), el("span", {}, name), el("span")));
  items.forEach((item, place) => {
    const { kind = "", colour = "", note = "" } = entries[place];
    const square = item.firstChild.firstChild;
    square.setAttribute("class", kind);
    square.style.fill = colour;
    say(item.lastChild, note ? ` ${note}` : "");
  });
}

const USES = ["free", "cached", "used", "shared"];

// One square for each cell of an arena; the legend's squares know the theme's colours.
export function drawArena(canvas, arena, list) {
  const colours = USES.map((use) => {
    const square = list.querySelector(`.${use}`);
    return square ? getComputedStyle(square).fill : "";
  });
  const cells = arena.cells;
  const width = Math.max(200, canvas.parentElement.clientWidth);
  const across = Math.max(1, Math.floor(width / (cells.length > 512 ? 8 : 12)));
  const size = width / across;
  const height = Math.max(1, Math.ceil(cells.length / across)) * size;
  const ratio = window.devicePixelRatio || 1;
  const wide = Math.round(width * ratio);
  const high = Math.round(height * ratio);
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
  }
  const paint = canvas.getContext("2d");
  paint.setTransform(ratio, 0, 0, ratio, 0, 0);
  paint.clearRect(0, 0, width, height);
  for (let k = 0; k < cells.length; k += 1) {
    paint.fillStyle = colours[Number(cells[k])];
    paint.fillRect((k % across) * size, Math.floor(k / across) * size, size - 1, size - 1);
  }
}

export function bar(share, label) {
  const filled = Math.round(100 * Math.min(1, Math.max(0, share)));
  return svg("svg", { class: "bar", viewBox: "0 0 100 6", preserveAspectRatio: "none", role: "img", "aria-label": label },
    svg("rect", { class: "bar-track", width: 100, height: 6 }),
    svg("rect", { class: "bar-fill", width: filled, height: 6 }));
}

const PHASES = new Set(["receive", "preprocess", "admission", "queue", "dispatch", "place", "run", "prefill", "decode", "respond"]);

export function phaseKind(name) {
  return PHASES.has(name) ? `ph-${name}` : "ph-other";
}

const MEMORY = ["weights", "runtime", "workspace", "caches", "free"];

// A card for each worker: what its memory is for, as a bar and in figures.
export function drawMemory(parent, workers) {
  const cards = keyed(parent, workers.map((worker) => worker.id), (id) => el("div", { class: "lane" },
    el("h4", {}, id), svg("svg", { class: "waterfall", viewBox: "0 0 1000 10", preserveAspectRatio: "none", role: "img" }),
    el("ul", { class: "legend" }), el("p", { class: "dim" })));
  cards.forEach((card, place) => {
    const { id, memory } = workers[place];
    const [, chart, list, note] = card.children;
    const parts = MEMORY.map((name) => (
      { name, kind: `mem-${name}`, value: memory[name], note: mebibytes(memory[name]) }));
    drawParts(chart, parts, `Memory of ${id}: ${parts.map((part) => `${part.name} ${part.note}`).join(", ")}`);
    legend(list, parts);
    const budget = memory.budget ? ` of ${mebibytes(memory.budget)} allowed` : "";
    say(note, `${mebibytes(memory.measured)} in use${budget}. A load may take what is free (limit: ${memory.limited_by}).`);
  });
}

// Parts of a whole side by side, [{kind, value}]; the smallest stay in sight. `text` tells the same.
function drawParts(chart, parts, text) {
  if (chart.getAttribute("aria-label") === text) return;
  const whole = parts.reduce((sum, part) => sum + part.value, 0) || 1;
  const widths = parts.map((part) => (part.value ? Math.max(15, (1000 * part.value) / whole) : 0));
  const scale = 1000 / (widths.reduce((sum, width) => sum + width, 0) || 1);
  let x = 0;
  const drawn = parts.map((part, place) => {
    const width = scale * widths[place];
    const rect = svg("rect", { class: part.kind, x, width, height: 10 });
    x += width;
    return rect;
  });
  chart.setAttribute("aria-label", text);
  chart.replaceChildren(...drawn);
}

// The phases of one request over its whole time; `text` tells the same.
export function waterfall(request, text) {
  const total = request.total_ms || 1;
  const drawn = request.phases.map((phase) => svg("rect", {
    class: phaseKind(phase.name), height: 10, x: (1000 * phase.start_ms) / total,
    width: Math.max(2, (1000 * phase.ms) / total),
  }));
  return svg("svg", { class: "waterfall", viewBox: "0 0 1000 10", preserveAspectRatio: "none", role: "img", "aria-label": text },
    svg("rect", { class: "bar-track", width: 1000, height: 10 }), ...drawn);
}
