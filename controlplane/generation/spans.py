"""What a generation's span says of it: shapes, times and the decision, never content."""

from __future__ import annotations

from controlplane.generation.open import Progress
from controlplane.generation.records import GenerationAsk
from controlplane.telemetry import AttributeValue


def span_attributes(
    ask: GenerationAsk, progress: Progress, total_ns: int
) -> dict[str, AttributeValue]:
    """Attributes of a generation that ended after `total_ns`."""
    attributes: dict[str, AttributeValue] = {
        "orchid.model": ask.model[:64],
        "orchid.tenant": ask.klass.tenant[:64],
        "orchid.class": ask.klass.name[:64],
        "orchid.answers": ask.limits.n,
        "orchid.max_tokens": ask.limits.max_tokens,
        "orchid.sends": progress.sends,
        "orchid.generated_tokens": progress.tokens,
        "orchid.total_ms": total_ns / 1e6,
    }
    choice, provenance, usage = progress.choice, progress.provenance, progress.usage
    if choice is not None:
        attributes |= {
            "orchid.reason": choice.reason,
            "orchid.first_token_target_ms": choice.target_ns / 1e6,
            "orchid.first_token_predicted_ms": choice.predicted_ns / 1e6,
        }
    if provenance is not None:
        attributes |= {
            "orchid.variant": provenance.variant,
            "orchid.approximation": provenance.approximation,
            "orchid.manifest_digest": provenance.manifest_digest,
            "orchid.worker_id": provenance.worker_id,
        }
    if progress.prompt_tokens:
        attributes |= {
            "orchid.input_tokens": progress.prompt_tokens,
            "orchid.cached_tokens": progress.cached_tokens,
        }
    if progress.first_token_ns:
        attributes["orchid.first_token_ms"] = progress.first_token_ns / 1e6
    if progress.finish:
        attributes["orchid.finish"] = progress.finish
    if usage is not None:
        attributes |= {
            "orchid.queue_ms": usage.queue_ns / 1e6,
            "orchid.mean_gap_ms": usage.mean_gap_ns / 1e6,
            "orchid.max_gap_ms": usage.max_gap_ns / 1e6,
            "orchid.prefill_cpu_ms": usage.prefill_cpu_ns / 1e6,
            "orchid.decode_cpu_ms": usage.decode_cpu_ns / 1e6,
            "orchid.preemptions": usage.preemptions,
        }
    return attributes
