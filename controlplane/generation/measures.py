"""What is measured of generations from arrival to end; `controlplane/metrics` shows it.

Plain integers, written on the event loop by the service that owns the generations.
"""

from __future__ import annotations

from typing import TypeVar

from controlplane.errors import Overloaded, Refused
from controlplane.generation.plan import Plan
from controlplane.generation.progress import Progress
from controlplane.generation.records import FinishReason
from controlplane.histogram import TIMES_NS, Histogram
from controlplane.measures import Callers
from controlplane.policy.records import RequestClass

K = TypeVar("K")

# Refused for what this process may hold, and by the worker that it was sent to.
BOUND, WORKER = "bound", "worker"
# Kinds of tokens.
PROMPT, CACHED, GENERATED = "prompt", "cached", "generated"


class GenerationMeasures:
    """Keys are label values; times in ns.

    `received` and `in_targets` by model and class, `ended` by these and outcome, `refused` by
    model and reason, `tokens` by model, variant and kind; `queue` and `first_token` by model,
    class and variant, `duration` by model and class.
    """

    def __init__(self, callers: Callers) -> None:
        self.callers = callers
        self.received: dict[tuple[str, str], int] = {}
        self.ended: dict[tuple[str, str, str], int] = {}
        self.in_targets: dict[tuple[str, str], int] = {}
        self.refused: dict[tuple[str, str], int] = {}
        self.tokens: dict[tuple[str, str, str], int] = {}
        self.queue: dict[tuple[str, str, str], Histogram] = {}
        self.first_token: dict[tuple[str, str, str], Histogram] = {}
        self.duration: dict[tuple[str, str], Histogram] = {}

    def arrived(self, model: str, klass: RequestClass) -> None:
        """A generation came; `model` is NONE when nobody has it."""
        key = (model, self.callers.klass(klass))
        self.received[key] = self.received.get(key, 0) + 1

    def end(
        self,
        model: str,
        klass: RequestClass,
        outcome: str,
        error: BaseException | None,
        progress: Progress,
    ) -> None:
        """A generation ended, opened or not; `error` is why there is no whole answer."""
        key = (model, self.callers.klass(klass), outcome)
        self.ended[key] = self.ended.get(key, 0) + 1
        if isinstance(error, Refused):
            reason = (model, _reason(error, progress))
            self.refused[reason] = self.refused.get(reason, 0) + 1

    def admitted(self, plan: Plan, progress: Progress, queue_ns: int) -> None:
        """A worker gave it a place, `queue_ns` after it had come there."""
        _histogram(self.queue, self._key(plan, progress)).observe(queue_ns)

    def began(self, plan: Plan, progress: Progress) -> None:
        """Its first token is there."""
        _histogram(self.first_token, self._key(plan, progress)).observe(progress.first_token_ns)

    def completed(self, plan: Plan, progress: Progress, total_ns: int) -> None:
        """It ended well, `total_ns` after it had come."""
        usage, choice, provenance = progress.usage, progress.choice, progress.provenance
        if usage is None or choice is None or provenance is None:
            return
        model, klass = plan.model.name, self.callers.klass(plan.klass)
        _histogram(self.duration, (model, klass)).observe(total_ns)
        counts = {
            PROMPT: usage.prompt_tokens,
            CACHED: usage.cached_tokens,
            GENERATED: usage.generated_tokens,
        }
        for kind, count in counts.items():
            key = (model, provenance.variant, kind)
            self.tokens[key] = self.tokens.get(key, 0) + count
        if kept_targets(progress):
            self.in_targets[model, klass] = self.in_targets.get((model, klass), 0) + 1

    def _key(self, plan: Plan, progress: Progress) -> tuple[str, str, str]:
        assert progress.provenance is not None
        return plan.model.name, self.callers.klass(plan.klass), progress.provenance.variant


def kept_targets(progress: Progress) -> bool:
    """Whether a whole answer kept its targets: first token, mean gap, and its end."""
    usage, choice = progress.usage, progress.choice
    return (
        usage is not None
        and choice is not None
        and progress.first_in_target
        and usage.mean_gap_ns <= choice.token_ns
        and progress.finish != FinishReason.DEADLINE.value
    )


def _histogram(kept: dict[K, Histogram], key: K) -> Histogram:
    found = kept.get(key)
    if found is None:
        found = kept[key] = Histogram(TIMES_NS)
    return found


def _reason(error: Refused, progress: Progress) -> str:
    """Why there was no place: the ladder, this process's bounds, the forecast, a worker's word."""
    if isinstance(error, Overloaded):
        return error.reason
    if progress.choice is None:
        return BOUND
    return WORKER if progress.choice.routes else progress.choice.reason
