"""The last minutes of the house: what counters gained in each interval. Holds no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from controlplane.page.records import FirstTokens, ModelSample, Rates, Sample

# Five minutes of seconds.
MOST_SAMPLES = 300
# What "now" means for shares.
RECENT_S = 60.0

_ANSWERED, _REFUSED = "answered", "refused"
# Endings that say nothing of whether an answer would have been on time.
_CALLERS_OWN = frozenset({"cancelled", "invalid", "not-found", "unsatisfiable"})


class ModelCounts(NamedTuple):
    """Totals of one model since the start, and what waits now.

    `reasons` counts why there was no answer, `decided` why answers came from their variant.
    `variants` counts answers by session (0 where that does not matter) and variant, `tokens` the
    generated tokens likewise, each since its worker's start; `first_tokens` counts times to the
    first token by bucket.
    """

    outcomes: Mapping[str, int] = {}
    variants: Mapping[tuple[int, str], int] = {}
    reasons: Mapping[str, int] = {}
    decided: Mapping[str, int] = {}
    queued: int = 0
    work_ms: float = 0.0
    tokens: Mapping[tuple[int, str], int] = {}
    first_tokens: tuple[int, ...] = ()


class Counts(NamedTuple):
    """Totals of the house at one moment."""

    choices: int
    offered: int
    models: Mapping[str, ModelCounts]


class History:
    """A bounded ring of samples; `add` is called once an interval with the totals of then."""

    def __init__(self, most: int = MOST_SAMPLES) -> None:
        self._samples: deque[Sample] = deque(maxlen=most)
        self._last: Counts | None = None
        self._at_s = 0.0

    def add(self, counts: Counts, at_s: float) -> None:
        """The house at `at_s` of its uptime; the first call is what the next is compared to."""
        before = self._last
        # A model that comes back is compared to what it was when it went.
        known: Mapping[str, ModelCounts] = {} if before is None else before.models
        self._last = counts._replace(models={**known, **counts.models})
        seconds, self._at_s = at_s - self._at_s, at_s
        if before is None or seconds <= 0.0:
            return
        models = {
            name: _gained(known.get(name, _NOTHING), now) for name, now in counts.models.items()
        }
        self._samples.append(
            Sample(
                at_s=round(at_s, 3),
                seconds=round(seconds, 3),
                choices=counts.choices - before.choices,
                offered=counts.offered - before.offered,
                models=models,
            )
        )

    def samples(self) -> tuple[Sample, ...]:
        """All that are kept, the oldest first."""
        return tuple(self._samples)

    def last(self) -> tuple[Sample, ...]:
        """The newest one, if there is one."""
        return (self._samples[-1],) if self._samples else ()

    def recent(self, seconds: float = RECENT_S) -> tuple[Sample, ...]:
        """Those of the last `seconds`, the newest first."""
        begin = self._at_s - seconds
        return tuple(takewhile(lambda each: each.at_s > begin, reversed(self._samples)))


_NOTHING = ModelCounts()


def rates(samples: Iterable[Sample], model: str | None = None) -> Rates:
    """How requests of a model (None: of all) ended in these samples."""
    seconds, ended, answered, refused, counting = 0.0, 0, 0, 0, 0
    for sample in samples:
        seconds += sample.seconds
        for name, each in sample.models.items():
            if model is not None and name != model:
                continue
            for outcome, count in each.outcomes.items():
                ended += count
                answered += count if outcome == _ANSWERED else 0
                refused += count if outcome == _REFUSED else 0
                counting += 0 if outcome in _CALLERS_OWN else count
    length = seconds or 1.0
    return Rates(
        seconds=round(seconds, 3),
        ended_per_s=round(ended / length, 4),
        answered_per_s=round(answered / length, 4),
        refused_per_s=round(refused / length, 4),
        on_time_share=round(answered / counting, 6) if counting else None,
    )


def tokens_per_s(samples: Iterable[Sample], model: str) -> float:
    """Tokens of a model that its workers generated a second in these samples."""
    seconds, tokens = 0.0, 0
    for sample in samples:
        seconds += sample.seconds
        if model in sample.models:
            tokens += sample.models[model].tokens
    return tokens / seconds if seconds else 0.0


def first_tokens(
    samples: Iterable[Sample], model: str, bounds_ns: Sequence[int]
) -> FirstTokens | None:
    """Times to the first token in these samples; None when there was none."""
    total = [0] * (len(bounds_ns) + 1)
    for sample in samples:
        if model in sample.models:
            for bucket, count in enumerate(sample.models[model].first_tokens):
                total[bucket] += count
    if not any(total):
        return None
    p50, p95 = (quantile(total, bounds_ns, share) / 1e6 for share in (0.5, 0.95))
    return FirstTokens(count=sum(total), p50_ms=round(p50, 3), p95_ms=round(p95, 3))


def quantile(counts: Sequence[int], bounds: Sequence[int], share: float) -> float:
    """The value below which `share` of the observations are, evenly spread inside a bucket.

    `counts` has one entry more than `bounds`; what is above the last bound counts as that.
    """
    wanted, seen, lower = share * sum(counts), 0, 0
    for count, upper in zip(counts, bounds, strict=False):
        if count and seen + count >= wanted:
            return lower + (upper - lower) * (wanted - seen) / count
        seen, lower = seen + count, upper
    return float(lower)


def _gained(before: ModelCounts, now: ModelCounts) -> ModelSample:
    # A worker that is seen for the first time did not generate all it ever did just now.
    tokens = sum(max(0, n - before.tokens.get(key, n)) for key, n in now.tokens.items())
    firsts = before.first_tokens or (0,) * len(now.first_tokens)
    gained = tuple(n - old for old, n in zip(firsts, now.first_tokens, strict=True))
    return ModelSample(
        outcomes=_growth(before.outcomes, now.outcomes),
        variants=_by_variant(before.variants, now.variants),
        reasons=_growth(before.reasons, now.reasons),
        decided=_growth(before.decided, now.decided),
        queued=now.queued,
        work_ms=round(now.work_ms, 3),
        tokens=tokens,
        first_tokens=gained if any(gained) else (),
    )


def _by_variant(
    before: Mapping[tuple[int, str], int], now: Mapping[tuple[int, str], int]
) -> dict[str, int]:
    grown: dict[str, int] = {}
    for key, n in now.items():
        if n > (old := before.get(key, 0)):
            grown[key[1]] = grown.get(key[1], 0) + n - old
    return grown


def _growth(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    return {key: grown for key, n in now.items() if (grown := n - before.get(key, 0)) > 0}
