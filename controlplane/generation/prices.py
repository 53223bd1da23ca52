"""Prices of cohorts of generations: whose answers take more than is foreseen for everybody."""

from __future__ import annotations

from controlplane.generation.plan import Plan
from controlplane.generation.progress import Progress
from controlplane.policy.cohorts import Cohort, CohortPrice, Cohorts
from controlplane.policy.decode_cost import whole_cost
from controlplane.policy.records import RequestClass
from controlplane.records.estimates import FadingMeans


class GenerationPrices:
    """What generations of a tenant, class and prompt size take over what is foreseen, by model.

    Foreseen is what the profile says of a prompt and an answer that is as far from its longest
    length as those of everybody were lately. Lives on the event loop.
    """

    def __init__(self) -> None:
        self._cohorts: dict[str, Cohorts] = {}
        self._written = FadingMeans()

    def price(self, model: str, klass: RequestClass, prompt_tokens: int, now_ns: int) -> float:
        """What the work foreseen for one is multiplied by, at least 1."""
        cohorts = self._cohorts.get(model)
        if cohorts is None or not cohorts.raised:
            return 1.0
        return cohorts.price_of(_cohort(klass, prompt_tokens), now_ns)

    def learn(self, plan: Plan, progress: Progress, now_ns: int) -> None:
        """A generation ended well: its worker says what it took."""
        usage, route = progress.usage, progress.route
        if usage is None or route is None:
            return
        model, prompt = plan.model.name, len(plan.prompt)
        limit, answers = plan.output_limit(route), plan.ask.limits.n
        key = (model,)
        part = usage.generated_tokens / max(1, limit * answers)
        foreseen = self._written.mean(key, part) * limit
        self._written.observe(key, part)
        # What was cached is nobody's error.
        computed = max(1, prompt - usage.cached_tokens)
        cost = whole_cost(progress.setting(route), computed, foreseen, answers)
        cohorts = self._cohorts.setdefault(model, Cohorts())
        took_ns = usage.prefill_cpu_ns + usage.decode_cpu_ns
        base_ns = cost.prefill_ns + cost.decode_ns
        cohorts.observe(_cohort(plan.klass, prompt), base_ns, took_ns, now_ns)

    def prices(self, model: str, now_ns: int) -> list[CohortPrice]:
        """The cohorts of a model whose price is above 1, the dearest first."""
        cohorts = self._cohorts.get(model)
        return [] if cohorts is None else cohorts.prices(now_ns)


def _cohort(klass: RequestClass, prompt_tokens: int) -> Cohort:
    return klass.tenant, klass.name, prompt_tokens.bit_length()
