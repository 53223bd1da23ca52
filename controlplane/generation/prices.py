"""Prices of cohorts of generations: whose answers become longer than is foreseen for everybody."""

from __future__ import annotations

from controlplane.generation.plan import Plan
from controlplane.generation.progress import Progress
from controlplane.policy.cohorts import Cohort, CohortPrice, Cohorts
from controlplane.policy.records import RequestClass
from controlplane.records.estimates import FadingMeans


class GenerationPrices:
    """How long answers of a tenant, class and prompt size are over what is foreseen, by model.

    Foreseen is an answer that is as far from its longest length as those of everybody were lately.
    What a token takes is the worker's to learn: no tenant makes one dearer. Lives on the event
    loop.
    """

    def __init__(self) -> None:
        self._cohorts: dict[str, Cohorts] = {}
        self._written = FadingMeans()

    def price(self, model: str, klass: RequestClass, prompt_tokens: int, now_ns: int) -> float:
        """What the length foreseen for its answers is multiplied by, at least 1."""
        cohorts = self._cohorts.get(model)
        if cohorts is None or not cohorts.raised:
            return 1.0
        return cohorts.price_of(_cohort(klass, prompt_tokens), now_ns)

    def learn(self, plan: Plan, progress: Progress, now_ns: int) -> None:
        """A generation ended well: its worker says how long its answers are."""
        usage, route = progress.usage, progress.route
        if usage is None or route is None:
            return
        limit = plan.output_limit(route) * plan.ask.limits.n
        model, prompt = plan.model.name, len(plan.prompt)
        self.observe(model, plan.klass, prompt, limit, usage.generated_tokens, now_ns)

    def observe(
        self,
        model: str,
        klass: RequestClass,
        prompt_tokens: int,
        limit: int,
        generated: int,
        now_ns: int,
    ) -> None:
        """The same in tokens: at most `limit` might have come of all its answers."""
        key = (model,)
        part = generated / max(1, limit)
        foreseen = self._written.mean(key, part) * limit
        self._written.observe(key, part)
        cohorts = self._cohorts.setdefault(model, Cohorts())
        cohorts.observe(_cohort(klass, prompt_tokens), foreseen, generated, now_ns)

    def prices(self, model: str, now_ns: int) -> list[CohortPrice]:
        """The cohorts of a model whose price is above 1, the dearest first."""
        cohorts = self._cohorts.get(model)
        return [] if cohorts is None else cohorts.prices(now_ns)


def _cohort(klass: RequestClass, prompt_tokens: int) -> Cohort:
    return klass.tenant, klass.name, prompt_tokens.bit_length()
