// How figures and words are written.

export const MOODS = {
  ready: "good", answered: "good", live: "good",
  connecting: "warn", loading: "warn", warming: "warn", suspect: "warn", draining: "warn", drained: "warn",
  unloading: "warn", refused: "warn", cancelled: "warn",
};
export const OTHERS = [
  { name: "refused", kind: "refused", outcomes: ["refused"] },
  { name: "too late", kind: "late", outcomes: ["too-late"] },
  { name: "failed", kind: "failed", outcomes: ["unavailable", "worker-fault", "failed"] },
];
export const DECISIONS = {
  "most-accurate-in-reserve": "the most accurate, within the reserve",
  "limited-by-slack": "limited by the deadline",
  "limited-by-reserve": "limited by the reserve for others",
  "limited-by-price": "limited by what its time is worth to others",
  "cascade": "a first answer, to be judged by how sure it is",
  "confident-first-answer": "a cheap first answer that was sure",
  "first-answer-by-price": "a first answer; a second was not worth its time",
  "first-answer-by-slack": "a first answer; no second would have been in time",
  "first-answer-unfinished": "a first answer; the second did not end in time",
  "escalated": "a second answer, after one that was not sure",
  "shadow": "a second answer, to watch how right the first ones are",
  "fastest-under-load": "the fastest, under load",
  "fastest-for-slack": "the fastest, for the deadline",
  "last-chance": "the last that might make it",
  "only-eligible": "the only one allowed",
  "fixed-most-accurate": "always the most accurate",
  "fixed-cheapest": "always the fastest",
  "fixed-at-arrival": "fixed on arrival",
};
export const REASONS = {
  "queue-full": "the queue is full",
  "tenant-queue-full": "the tenant has as many waiting as it may",
  "tenant-work-bound": "the tenant's waiting requests hold as much predicted work as they may",
  "tenant-borrows-no-more": "the tenant had its share of the workers' time",
  "predicted-work-bound": "the queue holds as much predicted work as it may",
  "deadline-behind-work-ahead": "the work ahead leaves no time before the deadline",
  "deadline-below-service-time": "the deadline is shorter than the fastest variant needs",
  "overload-deferred": "the class may wait, and the pool is overloaded",
  "overload-protecting": "nobody is let in until those who were are safe",
  "expired": "the deadline had passed on arrival",
  "no-worker": "no worker had the model",
  "shed-unlikely-on-time": "dropped: unlikely to be on time",
  "deadline-passed-queued": "the deadline passed in the queue",
  "deadline-passed-running": "the deadline passed in a run",
  "deadline-too-short": "the deadline is shorter than the prompt takes",
  "not-in-target-now": "the first token would miss its target now",
  "bound": "as many generations are open as may",
  "worker": "the worker had no place",
  "unavailable": "nothing could serve it",
  "worker-fault": "the worker failed",
  "too-late": "the deadline passed",
  "unsatisfiable": "no variant may answer it",
  "failed": "failed",
};

export const count = (value) => Math.round(value).toLocaleString("en");
export const rate = (value) => (value < 10 ? value.toFixed(1) : count(value));
export const share = (value) => (value === null ? "–" : `${(100 * value).toFixed(value < 0.9995 ? 1 : 0)} %`);

export function time(ms) {
  if (ms === null) return "–";
  if (Math.abs(ms) >= 120000) return `${(ms / 60000).toFixed(1)} min`;
  if (Math.abs(ms) >= 10000) return `${(ms / 1000).toFixed(1)} s`;
  return Math.abs(ms) < 10 ? `${ms.toFixed(1)} ms` : `${count(ms)} ms`;
}

export function span(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

export const mebibytes = (bytes) => `${count(bytes / 1048576)} MiB`;
export const mood = (state) => MOODS[state.split(";")[0]] ?? "bad";
export const timely = (value) => (value === null ? "" : value >= 0.95 ? "good" : value >= 0.8 ? "warn" : "bad");
