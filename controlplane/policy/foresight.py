"""What one pool foretells about its runs, and what it learns when they end."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.policy.calibration import Calibration
from controlplane.policy.corrections import Corrections
from controlplane.policy.profiles import Candidate, VariantTable
from controlplane.policy.punctuality import Punctuality, bin_of
from controlplane.policy.selector import Estimate

# Variants share the host, so what befalls one is hearsay for the others.
_HEARSAY = 0.2


class Foresight:
    """Corrected predictions of the variants of one table, and how far to trust them."""

    __slots__ = ("_candidates", "_numbers", "calibration", "corrections", "punctuality")

    def __init__(self, table: VariantTable) -> None:
        sigmas = [candidate.profile.sigma for candidate in table.candidates]
        self._candidates = table.candidates
        self._numbers = table.numbers
        self.corrections = Corrections(sigmas)
        self.punctuality = [Punctuality(sigma) for sigma in sigmas]
        self.calibration = Calibration()

    def estimates(
        self, eligible: Sequence[int], nominal: Sequence[int], mask: int = -1
    ) -> list[Estimate]:
        """Estimates of the eligible variants that are in the mask; `nominal` in ns."""
        factors, sigmas = self.corrections.factors, self.corrections.sigmas
        candidates, punctuality = self._candidates, self.punctuality
        return [
            Estimate(
                number,
                predicted * factors[number],
                sigmas[number],
                candidates[number].quality,
                punctuality[number],
            )
            for number, predicted in zip(eligible, nominal, strict=True)
            if mask >> number & 1
        ]

    def completed(
        self, candidate: Candidate, nominal_ns: int, measured_ns: int, *, whole: bool
    ) -> None:
        """A run took `measured_ns` on its worker: correct the predictions.

        A run that was cut short (`whole` is False) only says that it takes at least this
        long, so it is heard when that is more than predicted.
        """
        number = self._numbers.get(candidate.name)
        if number is None or measured_ns <= 0:
            return
        ratio = measured_ns / nominal_ns
        if whole or ratio > self.corrections.factors[number]:
            self.corrections.observe(number, ratio)

    def ended(
        self,
        candidate: Candidate,
        *,
        promised_ns: int,
        needed_ns: int,
        slack_ns: int,
        chance: float,
        whole: bool,
    ) -> None:
        """A run ended `needed_ns` after it was sent, with `promised_ns` foretold for that.

        `slack_ns` is the time it had and `chance` what it was given to end in it. One
        that was cut short before (somebody cancelled it) says nothing about the chance.
        """
        number = self._numbers.get(candidate.name)
        if number is None:
            return
        own, ratio = self.punctuality[number], needed_ns / promised_ns
        if whole:
            place = bin_of(ratio)
            for other in self.punctuality:
                other.add(place, 1.0 if other is own else _HEARSAY)
        else:
            own.at_least(ratio)
            if needed_ns < slack_ns:
                return
        on_time = whole and needed_ns <= slack_ns
        own.settle(chance, on_time)
        self.calibration.settle(chance, on_time)

    def carried(self, table: VariantTable) -> Foresight:
        """What is known for a new table: variants are the same by name."""
        fresh = Foresight(table)
        renumbered = {
            number: self._numbers[candidate.name]
            for number, candidate in enumerate(table.candidates)
            if candidate.name in self._numbers
        }
        fresh.corrections = self.corrections.carried(
            renumbered,
            [candidate.profile.sigma for candidate in table.candidates],
            [self._rescale(candidate, table) for candidate in table.candidates],
        )
        for number, old in renumbered.items():
            fresh.punctuality[number] = self.punctuality[old]
        fresh.calibration = self.calibration
        return fresh

    def _rescale(self, candidate: Candidate, table: VariantTable) -> float:
        """Old over new nominal service at the new table's reference; 1 for a new variant."""
        number = self._numbers.get(candidate.name)
        if number is None:
            return 1.0
        shape = table.reference[candidate.tokenizer]
        old = self._candidates[number].profile.predict(shape)
        return old / candidate.profile.predict(shape)
