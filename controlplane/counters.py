"""Plain counters of the control plane; `rpc/fleet.py` shows them."""

from __future__ import annotations

from dataclasses import dataclass, field

from controlplane.ends import ANSWERED


@dataclass(slots=True)
class Counters:
    """Totals since the process started. Only the dispatcher and its parts write them.

    `outcomes` counts how requests ended, by model and outcome; `variants` the answers by
    model and variant. `late_results` came after their request had ended; `unknown_results`
    belong to no run that the worker was known to hold. `expired_work_executed` counts runs
    that began after their deadline, and must stay 0.
    """

    outcomes: dict[str, dict[str, int]] = field(default_factory=dict)
    variants: dict[str, dict[str, int]] = field(default_factory=dict)
    dispatched: int = 0
    redispatched: int = 0
    late_results: int = 0
    unknown_results: int = 0
    expired_work_executed: int = 0

    def ended(self, model: str, outcome: str) -> None:
        """Count one ending."""
        of_model = self.outcomes.setdefault(model, {})
        of_model[outcome] = of_model.get(outcome, 0) + 1

    def answered(self, model: str, variant: str) -> None:
        """Count one answer."""
        self.ended(model, ANSWERED)
        of_model = self.variants.setdefault(model, {})
        of_model[variant] = of_model.get(variant, 0) + 1
