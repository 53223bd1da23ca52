"""How far the door trusts its own forecasts: a margin that misses widen and hits narrow.

And how far those whose sizes do not tell what they take give way to the others.
"""

from __future__ import annotations

# What a pool that has seen nothing allows for.
_FIRST = 1.5
_LARGEST = 3.0
# A miss widens the margin by this; the share of misses at which hits make up for it.
_WIDEN = 0.05
_MISS_SHARE = 0.01
_NARROW = _WIDEN * _MISS_SHARE / (1.0 - _MISS_SHARE)
# Shares of newcomers that were let in follow each by so much.
_SHARE_GAIN = 1.0 / 64.0
# Whoever was foretold to need less of its time than this owes nothing to the margin.
_TIGHT = 0.5
# Where so few services fit a deadline there is no margin, from twice as many on all of it.
_FEW_SERVICES = 7.0


class DoorMargin:
    """What the wait that is foretold at the door is multiplied by, 1 to 3.

    Whoever is admitted in a flood waits for as long as the door allows, so an error that
    many runs share (a machine that slows down for a second) is met by all of them at once.
    The margin settles where one in a hundred of those admitted with little to spare misses.

    `way`, 0 to 1, is how far requests of cohorts with a price (`cohorts.py`) give way: for them the
    margin is `1 + way (price - 1)` times as wide. It settles where one in a hundred of the others
    is refused for want of workers. Nobody gives way who was let in less often than the others over
    his price: so he has of the time what his sizes ask for.
    """

    __slots__ = ("_let_in", "_priced_let_in", "factor", "way")

    def __init__(self) -> None:
        self.factor = _FIRST
        self.way = 0.0
        # Shares of the newcomers that were let in lately, of those without and with a price.
        self._let_in = self._priced_let_in = 1.0

    def stretch(self, slack_ns: int, queued_ns: float, queued: int, price: float = 1.0) -> float:
        """The multiplier for a request with this slack, behind so much work in so many requests.

        `price` is its cohort's. A short queue pays for a margin with idle workers, and its errors
        are those of a few runs, which the door's standard deviations cover.
        """
        if queued < 1 or queued_ns <= 0.0:
            return 1.0
        share = slack_ns * queued / (queued_ns * _FEW_SERVICES) - 1.0
        factor = self.factor
        if price > 1.0 and self._priced_let_in * price > self._let_in:
            factor *= 1.0 + self.way * (price - 1.0)
        return 1.0 + (factor - 1.0) * min(max(share, 0.0), 1.0)

    def told(self, price: float, refused: bool) -> None:
        """A newcomer of a cohort at this price was let in, or refused for want of workers.

        Only while some cohort has a price above 1.
        """
        let_in = 0.0 if refused else 1.0
        if price > 1.0:
            self._priced_let_in += _SHARE_GAIN * (let_in - self._priced_let_in)
            return
        self._let_in += _SHARE_GAIN * (let_in - self._let_in)
        moved = self.way + _WIDEN if refused else self.way - _NARROW
        self.way = min(max(moved, 0.0), 1.0)

    def settle(self, tightness: float, on_time: bool) -> None:
        """An admitted request has ended; the door had foretold `tightness` of its time for it."""
        if tightness < _TIGHT:
            return
        moved = self.factor - _NARROW if on_time else self.factor + _WIDEN
        self.factor = min(max(moved, 1.0), _LARGEST)
