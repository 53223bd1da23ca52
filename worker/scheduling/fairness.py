"""Whose turn it is among tenants: by the step work that each was promised, within a bound.

Start-time fair queueing (Goyal, Vin, Cheng 1996) with one tag for each account instead of one for
each sequence, as the counters of Sheng et al. (2024); docs/tenants.md has the bound and its proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from worker.scheduling.sequences import DecodeSequence

# Accounts that rest are forgotten beyond so many; a rest earns nothing anyway.
_KEPT = 256
# Less is what rounding leaves of promises that were kept.
_NOTHING_NS = 1.0


class AccountClocks:
    """Virtual times of accounts: step work in ns over their weights, 1 for a usual account.

    An account's time is what it was served, and what its sequences in the arena have yet to take as
    far as that is foreseen (`owed`): who was let in with much is behind whoever comes later. An
    account that begins to wait starts where the least served of those who wait is, or last was.
    `bound_ns` is how far one may be ahead of another that waits and still come first by its due
    time. Not thread-safe.
    """

    __slots__ = ("_beyond", "_bound_ns", "_floor", "_owed", "_served", "_waiting", "_weights")

    def __init__(self, bound_ns: int) -> None:
        self._bound_ns = bound_ns
        self._floor = 0.0
        # By account: work served over the weight, and work.
        self._served: dict[str, float] = {}
        self._owed: dict[str, float] = {}
        self._beyond: dict[str, float] = {}
        self._waiting: dict[str, int] = {}
        self._weights: dict[str, float] = {}

    def __len__(self) -> int:
        """Accounts that are remembered."""
        return len(self._served)

    @property
    def several(self) -> bool:
        """Whether more than one account has had anything since the house was last empty."""
        return len(self._served) > 1

    def begin(self, account: str, weight: float = 1.0) -> None:
        """One more sequence of the account waits; its weight is above 0 and may have changed."""
        self._weights[account] = weight
        count = self._waiting.get(account, 0)
        if not count:
            self._raise_floor()
            self._served[account] = max(self._served.get(account, 0.0), self._floor)
        self._waiting[account] = count + 1
        if not count and len(self._served) > _KEPT:
            self._forget()

    def end(self, account: str) -> None:
        """One sequence of the account waits no more."""
        count = self._waiting[account] - 1
        if count:
            self._waiting[account] = count
        else:
            self._raise_floor()
            del self._waiting[account]

    def promise(self, account: str, work_ns: float) -> None:
        """A sequence of the account was let in that is to take so much step work yet."""
        self._raise_floor()
        self._owed[account] = self.owed(account) + work_ns

    def serve(self, account: str, work_ns: float, beyond_ns: float) -> None:
        """So much of what was promised was served, and so much beyond it."""
        self._owed[account] = self.owed(account) - work_ns
        done = self._served.get(account, self._floor)
        self._served[account] = done + (work_ns + beyond_ns) / self._weights.get(account, 1.0)
        if beyond_ns:
            self._beyond[account] = self._beyond.get(account, 0.0) + beyond_ns

    def release(self, account: str, left_ns: float) -> None:
        """So much of what was promised will not be asked for."""
        if left_ns:
            self._owed[account] = self.owed(account) - left_ns

    def reset(self) -> None:
        """Nobody is here: nobody is owed anything."""
        if self._served:
            self._served.clear()
            self._owed.clear()
            self._beyond.clear()
            self._waiting.clear()
            self._weights.clear()
            self._floor = 0.0

    def ranks(self, sequences: Iterable[DecodeSequence]) -> Mapping[str, float]:
        """How far each account of these is ahead of the last of them; 0 within the bound.

        Empty when all are of one account: then there is nothing to tell apart.
        """
        accounts = {sequence.account_id for sequence in sequences}
        if len(accounts) < 2:
            return {}
        times = {account: self._time(account) for account in accounts}
        least = min(times.values())
        return {
            account: time - least if time - least > self._bound_ns else 0.0
            for account, time in times.items()
        }

    def waiting(self) -> Mapping[str, float]:
        """The times of the accounts that wait."""
        return {account: self._time(account) for account in self._waiting}

    def owed(self, account: str) -> float:
        """The work that the account's sequences in the arena have yet to take."""
        return self._owed.get(account, 0.0)

    def beyond(self, account: str) -> float:
        """What the account was served beyond what was promised, altogether."""
        return self._beyond.get(account, 0.0)

    def _time(self, account: str) -> float:
        owed = self.owed(account) / self._weights.get(account, 1.0)
        return self._served.get(account, self._floor) + owed

    def _raise_floor(self) -> None:
        if self._waiting:
            self._floor = max(self._floor, min([self._served[a] for a in self._waiting]))

    def _forget(self) -> None:
        for account in [a for a in self._served if a not in self._waiting]:
            if self.owed(account) < _NOTHING_NS and self._served[account] <= self._floor:
                del self._served[account]
                self._owed.pop(account, None)
                self._beyond.pop(account, None)
                self._weights.pop(account, None)
