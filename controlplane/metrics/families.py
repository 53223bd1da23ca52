"""Every metric of the control plane; docs/operations.md has the same table."""

from __future__ import annotations

from protos.measures import NANOSECONDS, Family, Kind

# Measured over predicted times are kept in thousandths.
PERMILLE = 1000


def _counter(
    name: str, text: str, labels: tuple[str, ...] = (), *, unit: str = "", per: int = 1
) -> Family:
    return Family(f"orchid.{name}", Kind.COUNTER, text, labels, unit, per)


def _gauge(
    name: str, text: str, labels: tuple[str, ...] = (), *, unit: str = "", per: int = 1
) -> Family:
    return Family(f"orchid.{name}", Kind.GAUGE, text, labels, unit, per)


def _times(name: str, text: str, labels: tuple[str, ...]) -> Family:
    return Family(f"orchid.{name}", Kind.HISTOGRAM, text, labels, "s", NANOSECONDS)


_CLASS = ("model", "class")
_VARIANT = ("model", "variant")

# Requests of the encoder lane.
RECEIVED = _counter("requests.received", "Requests that came to the queue's door.", _CLASS)
ENDED = _counter("requests.ended", "Requests that ended, by outcome.", (*_CLASS, "outcome"))
REFUSED = _counter(
    "requests.refused", "Requests refused at the door or dropped, by reason.", ("model", "reason")
)
MISSED = _counter(
    "requests.missed",
    "Admitted requests whose deadline passed while they were queued or running.",
    ("model", "place"),
)
ANSWERS = _counter(
    "answers", "Answers in time, by variant and why it was chosen.", (*_VARIANT, "reason")
)
INPUT_TOKENS = _counter("request.tokens", "Tokens of answered requests.", _VARIANT)
QUEUE_TIME = _times(
    "request.queue",
    "Time in the queue until a worker was given the request, or it ended (variant none).",
    (*_CLASS, "variant"),
)
DURATION = _times("request.duration", "Time from arrival to answer, of answered requests.", _CLASS)
SLACK = _times("request.slack", "Time left until the deadline at dispatch.", _VARIANT)
BATCH = Family("orchid.batch.size", Kind.HISTOGRAM, "Requests in one run, at dispatch.", _VARIANT)
SERVICE_RATIO = Family(
    "orchid.service.ratio",
    Kind.HISTOGRAM,
    "Measured over predicted time of a run.",
    _VARIANT,
    per=PERMILLE,
)
CORRECTION = _gauge(
    "service.correction", "Factor on profiled times that recent runs call for.", _VARIANT
)
SPREAD = _gauge("service.spread", "Relative spread of times around the prediction.", _VARIANT)
CHANCE_RUNS = _counter(
    "calibration.runs", "Runs that ended, by their chance to be on time.", ("model", "chance")
)
CHANCE_PREDICTED = _counter(
    "calibration.predicted", "Sum of the chances that runs were given.", ("model", "chance")
)
CHANCE_OBSERVED = _counter(
    "calibration.on_time", "Runs that were on time, by their chance.", ("model", "chance")
)
QUEUED = _gauge("requests.queued", "Requests in the queue.", ("model",))
QUEUED_WORK = _gauge(
    "queue.work",
    "Predicted work in the queue, each request on its fastest variant.",
    ("model",),
    unit="s",
    per=NANOSECONDS,
)
IN_FLIGHT = _gauge("requests.in_flight", "Requests that workers hold.", ("model",))
DOOR_MARGIN = _gauge(
    "door.margin", "What the wait foretold at the door is multiplied by, 1 to 3.", ("model",)
)
OVERLOAD = _gauge("overload.level", "Rung of the overload ladder, 0 for none.", ("model",))
OVERLOAD_MOVES = _counter("overload.changes", "Moves on the overload ladder.", ("model",))
OVERLOAD_EFFECTS = _counter(
    "overload.effects",
    "What the overload ladder did: stopped, cut, deferred, protected.",
    ("model", "effect"),
)
STRAIN = _gauge(
    "overload.strain", "How near newcomers are to hurting the admitted; 1 is there.", ("model",)
)
PRICE = _gauge(
    "worker.price", "Accurate answers that the next second of a worker is worth.", ("model",)
)
COHORT_PRICE = _gauge(
    "cohort.price", "What the dearest cohort takes over what its size says; 1 is none.", ("model",)
)
COHORTS_RAISED = _gauge(
    "cohorts.raised", "Cohorts whose requests take more than their size says.", ("model",)
)
CASCADE_ON = _gauge(
    "cascade.on", "1 while answers of the class may come from cascades, 0 after drift.", _CLASS
)
CASCADE_AGREEMENT = _gauge(
    "cascade.agreement", "Mean chance that second answers give to the first one's class.", _CLASS
)
CASCADE_FLOOR = _gauge(
    "cascade.agreement_floor", "What the agreement must not be below, by the evidence.", _CLASS
)
CASCADE_FIRST = _counter("cascade.first_answers", "First answers of cascades.", _CLASS)
CASCADE_COMPARED = _counter(
    "cascade.compared",
    "Second answers that were compared with a first one; shadows are those nobody asked for.",
    (*_CLASS, "kind"),
)
DISPATCHED = _counter("requests.dispatched", "Requests sent to a worker.")
REDISPATCHED = _counter("requests.redispatched", "Requests queued again after a failed run.")
LATE_RESULTS = _counter("results.late", "Results of requests that had ended before.")
UNKNOWN_RESULTS = _counter("results.unknown", "Results of runs that nobody had sent.")
EXPIRED = _counter("expired.work_executed", "Work executed after its deadline; must stay 0.")

# Generations.
G_RECEIVED = _counter("generations.received", "Generations that came.", _CLASS)
G_ENDED = _counter("generations.ended", "Generations that ended, by outcome.", (*_CLASS, "outcome"))
G_REFUSED = _counter(
    "generations.refused", "Generations refused for now, by reason.", ("model", "reason")
)
G_IN_TARGETS = _counter(
    "generations.within_targets",
    "Whole answers whose first token and mean gap kept their targets.",
    _CLASS,
)
G_OPEN = _gauge("generations.open", "Generations from arrival to end.", ("model",))
G_REDISPATCHED = _counter(
    "generations.redispatched", "Generations sent again after a worker was lost.", ("model",)
)
G_QUEUE = _times(
    "generation.queue", "Time at the worker until it had a place.", (*_CLASS, "variant")
)
G_FIRST = _times(
    "generation.first_token",
    "Time from arrival to the first token (TTFT).",
    (*_CLASS, "variant"),
)
G_DURATION = _times("generation.duration", "Time from arrival to the end of whole answers.", _CLASS)
G_TOKENS = _counter(
    "generation.tokens",
    "Tokens of whole answers: prompt, cached of the prompt, generated.",
    (*_VARIANT, "kind"),
)
G_CORRECTION = _gauge(
    "generation.correction",
    "Factor on predicted first-token times that recent ones call for, worst worker.",
    _VARIANT,
)

# Both lanes.
CHARGED = _counter(
    "charged.cpu",
    "CPU time of runs, charged to those who were in them, by tenant and class.",
    ("tenant", "class"),
    unit="s",
    per=NANOSECONDS,
)
RECORDS = _counter(
    "records.kept", "Records of requests that were written to the store, or dropped.", ("state",)
)
WORKERS = _gauge("workers", "Workers by class and state.", ("worker_class", "state"))
WORKERS_JOINED = _counter("workers.joined", "Worker sessions that began.")
WORKERS_LEFT = _counter("workers.left", "Worker sessions that ended, drained or lost.", ("how",))
PREPROCESS = _gauge("preprocess.texts", "Texts being tokenised or waiting for it.", ("state",))
PREPROCESS_REFUSED = _counter("preprocess.refused", "Texts refused because too many waited.")
HOST_CPU = _gauge("fleet.cpu_ratio", "CPU use of the workers' whole machines, smoothed, 0 to 1.")
HELD = _gauge("held", "What goes up and comes down; all 0 when nothing is in the house.", ("what",))
VIOLATIONS = _gauge("violations", "Broken invariants of the scheduler at the last look; must be 0.")

# The process.
BUILD = _gauge("build.info", "Always 1.", ("service", "version", "policy"))
