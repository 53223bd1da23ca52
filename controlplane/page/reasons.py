"""Why requests got their answers from where they did, or none, in words counted apart."""

from __future__ import annotations

from collections.abc import Mapping

from controlplane.dispatcher import Dispatcher
from controlplane.generation.service import Generations

# Endings that say by themselves why; those of refusals are counted by reason.
_SAY_WHY = ("unavailable", "worker-fault", "failed")


def request_reasons(dispatcher: Dispatcher, model: str) -> dict[str, int]:
    """Of a model's requests, since the start: refusals, passed deadlines, faults."""
    measures = dispatcher.measures
    found = {reason: n for (name, reason), n in measures.refused.items() if name == model}
    for (name, where), n in measures.missed.items():
        if name == model:
            found[f"deadline-passed-{where}"] = n
    return found | _faults(dispatcher.counters.outcomes.get(model, {}), _SAY_WHY)


def decision_reasons(dispatcher: Dispatcher, model: str) -> dict[str, int]:
    """Why the policy chose the variants that answered a model's requests, since the start."""
    found: dict[str, int] = {}
    for (name, _, reason), n in dispatcher.measures.answers.items():
        if name == model:
            found[reason] = found.get(reason, 0) + n
    return found


def generation_reasons(generations: Generations, model: str) -> dict[str, int]:
    """Of a model's generations, since the start."""
    refused = generations.measures.refused
    found = {reason: n for (name, reason), n in refused.items() if name == model}
    return found | _faults(generations.outcomes(model), (*_SAY_WHY, "too-late", "unsatisfiable"))


def _faults(outcomes: Mapping[str, int], words: tuple[str, ...]) -> dict[str, int]:
    return {word: outcomes[word] for word in words if outcomes.get(word)}
