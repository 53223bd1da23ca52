"""Who comes from the queue into the arena, and when."""

from __future__ import annotations

from worker.scheduling.admission import fits_room, fits_token_targets, queue_order
from worker.scheduling.blocks import blocks_for
from worker.scheduling.cost import CorrectedCost
from worker.scheduling.measures import SequenceMeasures
from worker.scheduling.policies import SchedulingPolicy
from worker.scheduling.preemption import victims_for
from worker.scheduling.records import SchedulingSettings, State
from worker.scheduling.residency import Residency
from worker.scheduling.sequences import DecodeSequence
from worker.scheduling.state import ranks_of, work_ns


class Entrance:
    """Lets sequences of the queue into the arena of `homes`, in the order of the policy.

    Where it must, it preempts residents for them. Tells `measures` whom it let in.
    """

    def __init__(
        self,
        settings: SchedulingSettings,
        policy: SchedulingPolicy,
        cost: CorrectedCost,
        homes: Residency,
        measures: SequenceMeasures,
    ) -> None:
        self._settings = settings
        self._policy = policy
        self._cost = cost
        self._homes = homes
        self._measures = measures

    @property
    def headroom(self) -> float:
        """The part of targets that is planned with now."""
        several = self._homes.clocks.several
        return self._settings.account_headroom if several else self._settings.headroom

    def admit(self, now_ns: int, ratio: float) -> None:
        """Admits in order until one does not fit; followers of a group wait for their first.

        `ratio` is the part of their limits that answers lately had.
        """
        latest: dict[str, int] = {}
        waited = []
        blocked = False
        queue = self._queue()
        place = 0
        while place < len(queue):
            sequence = queue[place]
            place += 1
            if self._homes.follows(sequence):
                continue
            if blocked and sequence.state != State.PREEMPTED:
                waited.append(sequence)
                continue
            if self._policy.by_targets and not self._has_turn_room(sequence, ratio):
                # Others have room where its account has none.
                continue
            if self._may_enter(sequence, now_ns, ratio):
                self._measures.admitted(sequence, now_ns)
                self._homes.admit(
                    sequence,
                    now_ns,
                    reserve=self._policy.reserve,
                    work_ns=work_ns(sequence, self._cost, ratio),
                )
                account = sequence.account_id
                latest[account] = max(latest.get(account, -1), sequence.order)
                if self._homes.clocks.several:
                    # Whose turn it is has changed by what was just promised.
                    left = set(queue[place:])
                    queue[place:] = [s for s in self._queue() if s in left]
                continue
            waited.append(sequence)
            if not self._policy.evict or sequence.passed_over >= self._settings.pass_limit:
                break
            # What gave way comes back as soon as it fits, whoever waits for more room.
            blocked = True
        for sequence in waited:
            if sequence.order < latest.get(sequence.account_id, -1):
                sequence.passed_over += 1

    def _queue(self) -> list[DecodeSequence]:
        """Everybody who waits, in the order in which they may come in."""
        return queue_order(
            list(self._homes.waiting.values()),
            self._policy,
            pass_limit=self._settings.pass_limit,
            ranks=ranks_of(self._homes),
        )

    def _has_turn_room(self, sequence: DecodeSequence, ratio: float) -> bool:
        residents = self._homes.resident.values()
        return fits_room(sequence, residents, self._cost, self.headroom, ratio)

    def _may_enter(self, sequence: DecodeSequence, now_ns: int, ratio: float) -> bool:
        residents = self._homes.residents()
        if self._policy.residents and len(residents) >= self._policy.residents:
            return False
        if self._policy.by_targets and residents:
            headroom = self.headroom
            if not fits_token_targets(sequence, residents, self._cost, headroom, ratio):
                return False
        if self._homes.has_room(sequence, reserve=self._policy.reserve):
            return True
        if not self._policy.evict or sequence.state == State.PREEMPTED:
            return False
        for victim in victims_for(
            blocks_for(sequence.most_tokens),
            self._homes.pool.available,
            residents,
            self._cost,
            now_ns,
        ):
            self._homes.preempt(victim, now_ns)
        return self._homes.has_room(sequence, reserve=True)
