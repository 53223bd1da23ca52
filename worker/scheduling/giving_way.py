"""How far those who write longer than usual give way at a worker's door, account by account.

The rule of the encoder lane's door (docs/decisions/0109-dear-cohorts-give-way.md), for as few
newcomers as a decode worker sees.
"""

from __future__ import annotations

from worker.scheduling.sequences import DecodeSequence

# A refusal of the others widens the way by this; the share of refusals at which those let in make
# up for it.
_WIDEN = 0.25
_REFUSED_SHARE = 0.01
_NARROW = _WIDEN * _REFUSED_SHARE / (1.0 - _REFUSED_SHARE)
# Shares of newcomers that were let in follow each by so much.
_SHARE_GAIN = 1.0 / 64.0
# Accounts that are remembered; who was seen first is forgotten first.
_KEPT = 256


class _Way:
    """`way` is 0 to 1; the others are shares let in lately, of usual and of dearer sequences."""

    __slots__ = ("let_in", "priced_let_in", "way")

    def __init__(self) -> None:
        self.way = 0.0
        self.let_in = self.priced_let_in = 1.0


class GivingWay:
    """Sequences with a `work_price` above 1 leave room while others of their account are refused.

    What such a one would wait counts `1 + way (price - 1)` times. The way settles where one in a
    hundred of the others is refused for its first token. Nobody gives way who was let in less
    often than the others over his price. Not thread-safe.
    """

    def __init__(self) -> None:
        self._ways: dict[str, _Way] = {}

    def room_ns(self, newcomer: DecodeSequence, wait_ns: float) -> float:
        """What it must have to spare beyond its wait."""
        found = self._ways.get(newcomer.account_id)
        price = newcomer.arrival.work_price
        if found is None or price <= 1.0 or found.priced_let_in * price <= found.let_in:
            return 0.0
        return found.way * (price - 1.0) * max(0.0, wait_ns)

    def told(self, newcomer: DecodeSequence, refused: bool) -> None:
        """It was let in, or refused because its first token would have been late."""
        found = self._ways.get(newcomer.account_id)
        if found is None:
            if len(self._ways) >= _KEPT:
                del self._ways[next(iter(self._ways))]
            found = self._ways[newcomer.account_id] = _Way()
        let_in = 0.0 if refused else 1.0
        if newcomer.arrival.work_price > 1.0:
            found.priced_let_in += _SHARE_GAIN * (let_in - found.priced_let_in)
            return
        found.let_in += _SHARE_GAIN * (let_in - found.let_in)
        moved = found.way + _WIDEN if refused else found.way - _NARROW
        found.way = min(max(moved, 0.0), 1.0)
