"""Whether first answers of a class are as right as their evidence says, seen by second ones.

Where two variants answered, the second one's calibrated chance for the first one's class is a
soft label: on the population of the evidence its mean is the share of right first answers. The
second answers are those of escalated requests and of a few confident ones that are asked again
behind the caller's back (shadows). Requests of another kind show as a mean below the evidence,
or, where both variants are wrong alike, as first answers that are less sure than the evidence's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

# At most one of so many answers of a class is compared by a shadow; so many unused ones are kept.
SHADOW_EVERY: Final = 50
_MOST_SAVED = 10
# Comparisons are forgotten exponentially, over about so many.
_MEMORY = 200.0
# The mean must be below the evidence by more than this, and beyond doubt: by so many standard
# errors besides, with so many comparisons.
TOLERANCE: Final = 0.05
_DOUBT = 2.5
FEWEST: Final = 12
_LEAST_SPREAD = 0.1
# The same of how sure first answers are, which every one of them tells.
SURENESS_TOLERANCE: Final = 0.025
_SURENESS_MEMORY = 400.0
_SURENESS_DOUBT = 3.5
_FEWEST_ANSWERS = 50
_LEAST_SURENESS_SPREAD = 0.05


class ClassWatch:
    """What was seen of one request class. Once it is off it stays off: see `Drift.renew`."""

    __slots__ = ("_all_squares", "_all_sure", "_all_usual", "_all_weight", "_saved", "_squares",
                 "_sum_agreement", "_sum_apart", "_sum_expected", "_weight",
                 "answers", "cause", "compared", "on", "shadows")  # fmt: skip

    def __init__(self) -> None:
        self.on = True
        # What turned it off, for people.
        self.cause = ""
        # First answers of cascades, second ones compared with them, and shadows among these.
        self.answers = 0
        self.compared = 0
        self.shadows = 0
        self._saved = 0
        self._all_weight = 0.0
        self._all_sure = 0.0
        self._all_usual = 0.0
        self._all_squares = 0.0
        self._weight = 0.0
        self._sum_agreement = 0.0
        self._sum_expected = 0.0
        self._sum_apart = 0.0
        self._squares = 0.0

    @property
    def agreement(self) -> float:
        """Mean chance that second answers gave to the first one's class; 0 without any."""
        return self._sum_agreement / self._weight if self._weight else 0.0

    @property
    def floor(self) -> float:
        """What the agreement must not be below: the evidence less tolerance and doubt."""
        if not self._weight:
            return 0.0
        mean = self._sum_apart / self._weight
        spread = math.sqrt(max(0.0, self._squares / self._weight - mean * mean))
        doubt = _DOUBT * max(spread, _LEAST_SPREAD) / math.sqrt(self._weight)
        return max(0.0, self._sum_expected / self._weight - TOLERANCE - doubt)

    @property
    def sureness(self) -> float:
        """Mean chance to be right that first answers have by their confidence; 0 without any."""
        return self._all_sure / self._all_weight if self._all_weight else 0.0

    @property
    def sureness_floor(self) -> float:
        """What the sureness must not be below: the evidence's less tolerance and doubt."""
        weight = self._all_weight
        if not weight:
            return 0.0
        mean = (self._all_sure - self._all_usual) / weight
        spread = math.sqrt(max(0.0, self._all_squares / weight - mean * mean))
        doubt = _SURENESS_DOUBT * max(spread, _LEAST_SURENESS_SPREAD) / math.sqrt(weight)
        return max(0.0, self._all_usual / weight - SURENESS_TOLERANCE - doubt)

    def answered(self, sure: float, usual: float) -> bool:
        """A cascade has given a first answer of this class, right with chance `sure`.

        `usual` is the mean of such chances in the evidence. True when this has turned cascades
        off.
        """
        keep = 1.0 - 1.0 / _SURENESS_MEMORY
        apart = sure - usual
        self.answers += 1
        self._saved = min(self._saved + 1, _MOST_SAVED * SHADOW_EVERY)
        self._all_weight = keep * self._all_weight + 1.0
        self._all_sure = keep * self._all_sure + sure
        self._all_usual = keep * self._all_usual + usual
        self._all_squares = keep * self._all_squares + apart * apart
        if not self.on or self.answers < _FEWEST_ANSWERS or apart >= 0.0:
            return False
        if self.sureness >= self.sureness_floor:
            return False
        self.on = False
        self.cause = (
            f"first answers are right with chance {self.sureness:.3f} by their confidence, the "
            f"evidence asks for {self.sureness_floor:.3f} ({self.answers} first answers)"
        )
        return True

    def may_shadow(self) -> bool:
        """Whether a confident answer may be compared, within the share of shadows."""
        return self.on and self._saved >= SHADOW_EVERY

    def shadowed(self) -> None:
        """A shadow run is made."""
        self._saved -= SHADOW_EVERY

    def compare(self, expected: float, agreement: float, *, shadow: bool = False) -> bool:
        """A first answer that is right with chance `expected` met a second one.

        `agreement` is the chance that the second one gives to the first one's class. True when
        this has turned cascades off.
        """
        keep = 1.0 - 1.0 / _MEMORY
        apart = agreement - expected
        self.compared += 1
        self.shadows += shadow
        self._weight = keep * self._weight + 1.0
        self._sum_agreement = keep * self._sum_agreement + agreement
        self._sum_expected = keep * self._sum_expected + expected
        self._sum_apart = keep * self._sum_apart + apart
        self._squares = keep * self._squares + apart * apart
        if not self.on or self.compared < FEWEST or self.agreement >= self.floor:
            return False
        self.on = False
        self.cause = (
            f"second answers agree {self.agreement:.3f} with first ones, the evidence asks for "
            f"{self.floor:.3f} ({self.compared} compared, {self.shadows} of them shadows)"
        )
        return True


class Drift:
    """The watches of one pool, by request class; classes are configured, so they are few."""

    __slots__ = ("_watches",)

    def __init__(self) -> None:
        self._watches: dict[str, ClassWatch] = {}

    def __iter__(self) -> Iterator[tuple[str, ClassWatch]]:
        return iter(sorted(self._watches.items()))

    def of(self, name: str) -> ClassWatch:
        """The watch of a class."""
        watch = self._watches.get(name)
        if watch is None:
            watch = self._watches[name] = ClassWatch()
        return watch

    def renew(self) -> None:
        """Begin anew: the evidence is another, or somebody has looked at it."""
        self._watches.clear()
