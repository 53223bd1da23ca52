// The status page: takes snapshots from /events and shows them. Docs: docs/operations.md.

import { badge, el, figures, fill, keyed, say, small, svg } from "./dom.js";
import { bar, bucketed, drawArena, drawMemory, drawMix, legend, phaseKind, shade, swatch, waterfall } from "./drawings.js";
import { count, DECISIONS, mebibytes, mood, OTHERS, rate, REASONS, share, span, time, timely } from "./words.js";

const byId = (id) => document.getElementById(id);
const KEPT_S = 300;
const RECENT_S = 60;
const SILENT_MS = 6000;
const HIDDEN_MS = 30000;

// --- sections -----------------------------------------------------------------------------

let samples = [];

const recent = () => {
  const newest = samples.at(-1)?.at_s ?? 0;
  return samples.filter((sample) => sample.at_s > newest - RECENT_S);
};

function total(of, model, field) {
  const sums = new Map();
  for (const sample of of) {
    for (const [name, value] of Object.entries(sample.models[model]?.[field] ?? {})) {
      sums.set(name, (sums.get(name) ?? 0) + value);
    }
  }
  return sums;
}

function showHouse({ house }) {
  say(byId("house"), `policy ${house.policy}, up ${span(house.uptime_s)}, version ${house.version}, `
    + `${house.cpu_percent.toFixed(0)} % CPU, ${mebibytes(house.resident_bytes)}`);
}

function showGlance({ totals, house }) {
  figures(byId("glance"), [
    ["On time, last minute", share(totals.on_time_share), "", timely(totals.on_time_share)],
    ["Offered", rate(totals.offered_per_s), "/s"],
    ["Answered", rate(totals.answered_per_s), "/s"],
    ["Refused", rate(totals.refused_per_s), "/s", totals.refused_per_s > 0 ? "warn" : ""],
    ["Policy decisions", rate(totals.offered_per_s + totals.choices_per_s), `/s, ${rate(totals.choices_per_s)} runs`],
    ["Waiting", count(totals.queued), `${count(totals.in_flight)} running`],
    ["Predicted work", time(totals.predicted_work_ms)],
    ["Generations", count(totals.generations), `${rate(totals.tokens_per_s)} tokens/s`],
    ["Workers ready", count(totals.workers_ready), `of ${totals.workers}`, totals.workers_ready < totals.workers ? "warn" : ""],
    ["Run after its deadline", count(house.expired_work_executed), "", house.expired_work_executed ? "bad" : ""],
  ]);
}

function showMix(snapshot) {
  const models = [
    ...snapshot.queues.map((queue) => ({ name: queue.model, variants: queue.variants })),
    ...snapshot.generators.map((each) => ({ name: each.model, variants: distinct(each.lanes) })),
  ];
  byId("mix-empty").hidden = models.length > 0;
  const figuresOf = keyed(byId("mix"), models.map((model) => model.name), (name) => {
    const table = detailsTable(["Variant", "Quality", "p50", "Correction", "Answered", "Last minute", "Note"]);
    return el("div", { class: "model" }, el("h3", {}, name), svg("svg", { role: "img" }),
      el("ul", { class: "legend" }), el("p", { class: "dim why" }), el("details", {}, el("summary", {}, "Variants in figures"), table));
  });
  figuresOf.forEach((figure, place) => drawModel(figure, models[place]));
}

function distinct(lanes) {
  return [...new Map(lanes.map((lane) => [lane.variant, { ...lane, name: lane.variant }])).values()];
}

function drawModel(figure, { name, variants }) {
  const newest = samples.at(-1)?.at_s ?? 0;
  const minute = recent();
  const ended = [...total(minute, name, "outcomes").values()].reduce((a, b) => a + b, 0);
  const answered = total(minute, name, "variants");
  const outcomes = total(minute, name, "outcomes");
  const portion = (value) => (ended ? `${((100 * value) / ended).toFixed(0)} %` : "");
  const parts = variants.map((variant, place) => ({
    name: variant.name,
    colour: shade(place, variants.length),
    note: portion(answered.get(variant.name) ?? 0),
    values: bucketed(samples, newest, (sample) => sample.models[name]?.variants[variant.name] ?? 0),
  }));
  for (const other of OTHERS) {
    const pick = (of) => other.outcomes.reduce((sum, outcome) => sum + (of(outcome) ?? 0), 0);
    parts.push({
      ...other,
      note: portion(pick((outcome) => outcomes.get(outcome))),
      values: bucketed(samples, newest, (sample) => pick((outcome) => sample.models[name]?.outcomes[outcome])),
    });
  }
  const seen = parts.filter((part) => part.values.some(Boolean));
  const told = seen.filter((part) => part.note && part.note !== "0 %").map((part) => `${part.name} ${part.note}`);
  const now = `${rate(ended / RECENT_S)} a second`;
  const [, chart, list, why, details] = figure.children;
  drawMix(chart, seen, `${name}: ended requests over five minutes; in the last minute ${now}: ${told.join(", ") || "none"}`);
  legend(list, seen);
  const decided = [...total(minute, name, "decided")].sort((a, b) => b[1] - a[1]);
  say(why, decided.length ? `Chosen in the last minute: ${decided.map(([reason, n]) =>
    `${DECISIONS[reason] ?? reason} ${portion(n)}`).join(", ")}.` : "");
  fill(details.lastChild, variants.map((variant) => [
    variant.name,
    variant.quality === null ? "not measured" : variant.quality.toFixed(4),
    variant.p50_ms === undefined ? "–" : time(variant.p50_ms),
    variant.correction.toFixed(2),
    count(variant.answered),
    count(answered.get(variant.name) ?? 0),
    variant.note ?? "",
  ]), "No variant is ready.");
}

function detailsTable(heads) {
  const row = el("tr", { role: "row" }, ...heads.map((head, place) =>
    el("th", { role: "columnheader", scope: "col", class: place && place < 6 ? "n" : "" }, head)));
  return el("table", { role: "table" }, el("thead", { role: "rowgroup" }, row), el("tbody", { role: "rowgroup" }));
}

function showQueues({ queues, workers }) {
  const empty = workers.length ? "No model of the encoder lane is ready yet."
    : "No worker has registered: start one with `orchid worker --controlplane HOST:PORT`.";
  fill(byId("queues"), queues.map((queue) => [
    queue.model,
    [...stateCell(queue.state), ...(queue.overload ? [small(queue.overload)] : [])],
    count(queue.workers),
    count(queue.queued),
    count(queue.in_flight),
    time(queue.predicted_work_ms),
    time(queue.head_slack_ms),
    [el("span", { class: timely(queue.rates.on_time_share) }, share(queue.rates.on_time_share))],
    queue.door_margin.toFixed(2),
  ]), empty);
}

function stateCell(state) {
  const [word, ...more] = state.split("; ");
  const nodes = [badge(word, mood(word))];
  if (more.length) nodes.push(small(more.join("; ")));
  return nodes;
}

function showWorkers({ workers }) {
  const rows = workers.map((worker) => {
    const gone = worker.gone_s !== null;
    const state = [badge(worker.state, worker.state === "lost" ? "bad" : mood(worker.state))];
    if (gone) state.push(small(`left ${span(worker.gone_s)} ago`));
    else if (worker.since_report_ms > 2000) state.push(small(`silent for ${time(worker.since_report_ms)}`));
    if (worker.trouble) state.push(small(worker.trouble));
    if (worker.throttled_periods) state.push(small(`throttled ${count(worker.throttled_periods)} times`));
    const host = `${worker.host_cpu_percent.toFixed(0)} %`;
    return [
      [el("span", {}, worker.id), small(`${worker.worker_class}, ${worker.threads} thread${worker.threads === 1 ? "" : "s"}, ${worker.simd}`), small(worker.address)],
      state,
      gone ? "–" : count(worker.held),
      gone ? "–" : count(worker.running),
      gone ? "–" : count(worker.queued),
      count(worker.completed),
      gone ? "–" : `${worker.cpu_percent.toFixed(0)} %`,
      gone ? "–" : [el("div", { class: "meter" }, host, bar(worker.host_cpu_percent / 100, `host CPU ${host}`))],
      gone ? "–" : mebibytes(worker.resident_bytes),
      heldModels(worker),
    ];
  });
  fill(byId("workers"), rows, "No worker has registered.");
}

function heldModels(worker) {
  if (!worker.models.length) return "none";
  return worker.models.map((model) => {
    const progress = model.state === "ready" || model.state === "failed" ? "" : ` ${(100 * model.progress).toFixed(0)} %`;
    const variants = model.variants.length > 3 ? `${model.variants.length} variants` : model.variants.join(", ");
    const told = [model.state === "ready" ? variants : `${model.state}${progress}`, model.note].filter(Boolean);
    return el("div", {}, model.name, small(told.join("; ")));
  });
}

function showMemory({ workers }) {
  const told = workers.filter((worker) => worker.memory);
  byId("memory").hidden = told.length === 0;
  drawMemory(byId("memory-bars"), told);
}

function showGenerators({ generators }) {
  byId("text").hidden = generators.length === 0;
  const blocks = keyed(byId("generators"), generators.map((each) => each.model), (name) =>
    el("div", { class: "model" }, el("h3", {}, name), el("dl", { class: "tiles" }), el("div", { class: "lanes" })));
  blocks.forEach((block, place) => {
    const generator = generators[place];
    const sum = (field) => generator.lanes.reduce((all, lane) => all + lane[field], 0);
    const first = generator.first_token;
    figures(block.children[1], [
      ["State", generator.state, generator.overload, mood(generator.state)],
      ["Open", count(generator.open), generator.redispatched ? `${generator.redispatched} taken over` : ""],
      ["Waiting", count(sum("waiting"))],
      ["Reading prompts", count(sum("reading"))],
      ["Writing", count(sum("writing"))],
      ["Tokens", rate(generator.tokens_per_s), "/s"],
      ["First token, median", first ? time(first.p50_ms) : "–", first ? `of ${count(first.count)} in 5 min` : ""],
      ["First token, 95 %", first ? time(first.p95_ms) : "–"],
      ["Whole answers, last minute", share(generator.rates.on_time_share), "", timely(generator.rates.on_time_share)],
    ]);
    showLanes(block.children[2], generator.lanes);
  });
}

function showLanes(parent, lanes) {
  const keys = lanes.map((lane) => `${lane.worker} · ${lane.variant}`);
  const cards = keyed(parent, keys, (key) => el("div", { class: "lane" }, el("h4", {}, key),
    el("dl", { class: "tiles" }), el("p", { class: "dim" }),
    el("canvas", { class: "arena", role: "img" }), el("ul", { class: "legend" })));
  cards.forEach((card, place) => {
    const lane = lanes[place];
    const arena = lane.arena;
    const [, list, note, canvas, colours] = card.children;
    figures(list, [
      ["Open", count(lane.open)],
      ["Waiting", count(lane.waiting)],
      ["Reading", count(lane.reading)],
      ["Writing", count(lane.writing)],
      ["Prompt tokens to read", count(lane.pending_prompt_tokens)],
      ["From the prefix cache", count(lane.prefix_hit_tokens), "tokens"],
      ["Gave way", count(lane.preemptions)],
      ["Shed", count(lane.shed)],
    ]);
    const shared = [...arena.cells].filter((cell) => cell === "3").length * arena.blocks_per_cell;
    legend(colours, [
      { name: "in use", kind: "used", note: count(arena.used_blocks) },
      { name: "of these by several", kind: "shared", note: count(shared) },
      { name: "prefix cache", kind: "cached", note: count(arena.cached_blocks) },
      { name: "free", kind: "free", note: count(arena.free_blocks) },
    ]);
    const each = arena.blocks_per_cell > 1 ? `; a square is ${arena.blocks_per_cell} blocks` : "";
    say(note, `Arena: ${share(arena.occupancy)} of ${count(arena.total_blocks)} blocks in use${each}`);
    canvas.setAttribute("aria-label", `Map of the arena: ${count(arena.used_blocks)} blocks in use, `
      + `${count(arena.cached_blocks)} held by the prefix cache, ${count(arena.free_blocks)} free`);
    canvas.hidden = !arena.cells;
    if (arena.cells) drawArena(canvas, arena, colours);
  });
}

function showReasons({ queues, generators }) {
  const minute = recent();
  const rows = [...queues, ...generators].flatMap((each) => {
    const lately = total(minute, each.model, "reasons");
    return Object.entries(each.reasons).sort((a, b) => b[1] - a[1]).map(([reason, sum]) => [
      each.model,
      REASONS[reason] ?? reason,
      count(lately.get(reason) ?? 0),
      count(sum),
    ]);
  });
  fill(byId("reasons"), rows, "Every request has been answered so far.");
}

function showSlow({ slow }) {
  const rows = slow.map((request) => {
    const told = request.phases.map((phase) => `${phase.name} ${time(phase.ms)}`).join(", ");
    const who = [request.tenant && `tenant ${request.tenant}`, request.request_class && `class ${request.request_class}`].filter(Boolean);
    const where = [request.variant, request.worker && `on ${request.worker}`].filter(Boolean).join(" ");
    const phases = el("ul", { class: "legend" }, ...request.phases.map((phase) =>
      el("li", {}, swatch(phaseKind(phase.name), ""), `${phase.name} ${time(phase.ms)}`)));
    return [
      [el("span", {}, request.model), ...[where, who.join(", "), request.trace_id && `trace ${request.trace_id}`].filter(Boolean).map(small)],
      `${span(request.ago_s)} ago`,
      [badge(request.outcome, mood(request.outcome))],
      time(request.total_ms),
      request.deadline_ms ? time(request.deadline_ms) : "–",
      [waterfall(request, told), phases],
    ];
  });
  fill(byId("slow"), rows, "None lately.");
}

// --- the connection -----------------------------------------------------------------------

let last = null;
let source = null;
let heardAt = 0;
let lostAt = 0;
let attempt = 0;
let retry = 0;
let hide = 0;

function show(snapshot) {
  last = snapshot;
  if (snapshot.whole) samples = snapshot.samples;
  else samples.push(...snapshot.samples);
  const newest = samples.at(-1)?.at_s ?? 0;
  samples = samples.filter((sample) => sample.at_s > newest - KEPT_S);
  draw();
}

function draw() {
  if (!last) return;
  for (const part of [showHouse, showGlance, showMix, showQueues, showWorkers, showMemory, showGenerators, showReasons, showSlow]) {
    part(last);
  }
}

function state(live, text) {
  const link = byId("link");
  say(link, live ? "Live" : text);
  link.className = `badge ${live ? "good" : "bad"}`;
  byId("main").classList.toggle("stale", !live && last !== null);
  document.title = live ? "Orchid status" : "(no connection) Orchid status";
}

function connect() {
  clearTimeout(retry);
  source?.close();
  source = new EventSource("/events");
  heardAt = Date.now();
  source.addEventListener("snapshot", (event) => {
    heardAt = Date.now();
    attempt = 0;
    lostAt = 0;
    byId("notice").hidden = true;
    show(JSON.parse(event.data));
    state(true, "");
  });
  source.onerror = () => lost(source.readyState === EventSource.CLOSED
    ? "The control plane turns this page away: as many readers as it serves are watching."
    : "The control plane does not answer.");
}

function lost(why) {
  source?.close();
  source = null;
  lostAt ||= Date.now();
  attempt += 1;
  const wait = Math.min(10, 2 ** Math.min(attempt - 1, 4)) * (0.75 + Math.random() / 2);
  state(false, "No connection");
  const since = new Date(lostAt).toLocaleTimeString();
  say(byId("notice"), `${why} Since ${since}; trying again${last ? ". What you see is from then." : "."}`);
  byId("notice").hidden = false;
  clearTimeout(retry);
  retry = setTimeout(connect, 1000 * wait);
}

setInterval(() => {
  if (source && Date.now() - heardAt > SILENT_MS) lost("No news came from the control plane.");
}, 1000);

document.addEventListener("visibilitychange", () => {
  clearTimeout(hide);
  if (!document.hidden) {
    if (!source) connect();
    return;
  }
  // Nobody looks: the control plane need not make snapshots.
  hide = setTimeout(() => {
    clearTimeout(retry);
    source?.close();
    source = null;
  }, HIDDEN_MS);
});

// --- theme --------------------------------------------------------------------------------

const THEMES = ["as the system", "light", "dark"];

function theme(name) {
  say(byId("theme"), `Theme: ${name}`);
  if (name === THEMES[0]) delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  draw();
}

function remembered() {
  try {
    return localStorage.getItem("theme");
  } catch {
    return null;
  }
}

byId("theme").addEventListener("click", () => {
  const name = THEMES[(THEMES.indexOf(byId("theme").textContent.slice(7)) + 1) % THEMES.length];
  try {
    localStorage.setItem("theme", name);
  } catch {
    // It is then chosen for this visit only.
  }
  theme(name);
});

let resized = 0;
window.addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(draw, 100);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

theme(THEMES.includes(remembered()) ? remembered() : THEMES[0]);
connect();
