"""Makes the records of generations when they end."""

from __future__ import annotations

from controlplane import ends
from controlplane.generation.measures import kept_targets
from controlplane.generation.plan import Plan
from controlplane.generation.progress import Progress
from controlplane.generation.spans import Ended
from controlplane.policy.decode_cost import whole_cost
from controlplane.policy.tenancy.blocks import KV_BLOCK_TOKENS
from controlplane.records.demand import DECODE, MOST_NAME, DemandRecord, Use
from controlplane.records.estimates import FadingMeans, Key
from controlplane.records.recorder import Sampling, Sink

_ID_BYTES = 4


class GenerationRecorder:
    """Belongs to the loop of the generations; see `RequestRecorder`."""

    def __init__(self, sink: Sink, sampling: Sampling, wall_offset_ns: int) -> None:
        self._sink = sink
        self._sampling = sampling
        self._wall_offset_ns = wall_offset_ns
        self._means = FadingMeans()

    def ended(self, ended: Ended, now_ns: int) -> None:
        """A generation ended, opened or not."""
        if not self._sampling.takes():
            return
        plan, progress = ended.plan, ended.progress
        klass = ended.ask.klass if plan is None else plan.klass
        limits = ended.ask.limits if plan is None else plan.ask.limits
        provenance, usage, choice = progress.provenance, progress.usage, progress.choice
        estimated, measured = Use(), Use()
        if plan is not None:
            estimated, measured = self._uses(plan, progress, now_ns)
        planned_ns = ended.arrived_ns if plan is None else plan.planned_ns
        self._sink.put(
            DemandRecord(
                at_us=(ended.arrived_ns + self._wall_offset_ns) // 1000,
                lane=DECODE,
                model=ended.model[:MOST_NAME],
                tenant=klass.tenant[:MOST_NAME],
                request_class=klass.name[:MOST_NAME],
                privacy_class=klass.privacy_class[:MOST_NAME],
                variant="" if provenance is None else provenance.variant,
                reason="" if choice is None else choice.reason,
                outcome=ended.outcome,
                worker="" if provenance is None else provenance.worker_id,
                asked=1,
                weight=self._sampling.weight,
                on_time=int(ended.outcome == ends.ANSWERED and kept_targets(progress)),
                approximation=int(provenance is not None and provenance.approximation),
                overload_level=0 if plan is None else plan.overload_level,
                quality=0.0 if provenance is None else provenance.quality,
                dispatches=progress.sends,
                batch=progress.width,
                items=limits.n,
                tokens=0 if plan is None else len(plan.prompt),
                longest=0 if plan is None else len(plan.prompt),
                cached_tokens=progress.cached_tokens,
                output_limit=0 if plan is None else plan.output_limit(progress.route),
                output_tokens=progress.tokens if usage is None else usage.generated_tokens,
                deadline_us=0 if plan is None else (plan.deadline_ns - plan.arrived_ns) // 1000,
                total_us=(now_ns - ended.arrived_ns) // 1000,
                queue_us=0 if usage is None else usage.queue_ns // 1000,
                first_us=progress.first_token_ns // 1000,
                slack_us=0
                if plan is None or not progress.sent_ns
                else (plan.deadline_ns - progress.sent_ns) // 1000,
                price=1.0 if plan is None else plan.work_price,
                estimated=estimated,
                measured=measured._replace(preprocess_us=(planned_ns - ended.arrived_ns) // 1000),
            )
        )

    def _uses(self, plan: Plan, progress: Progress, now_ns: int) -> tuple[Use, Use]:
        """What was foretold from others of its kind, and what it took; the kinds learn from it."""
        means, model, prompt = self._means, plan.model.name, len(plan.prompt)
        tokenised: Key = ("preprocess", model)
        estimated = Use(preprocess_us=int(means.mean(tokenised, 0.0) * max(1, prompt)) // 1000)
        means.observe(tokenised, (plan.planned_ns - plan.arrived_ns) / max(1, prompt))
        route = progress.route
        if route is None:
            return estimated, Use()
        klass, variant = plan.klass, route.variant
        # Answers of a tenant's prompts of one size are about equally far from their limit.
        size = str(prompt.bit_length())
        length: Key = ("length", model, klass.tenant, klass.name, size)
        reading: Key = ("prefill", model, variant)
        writing: Key = ("decode", model, variant)
        holding: Key = ("live", model, variant)
        limit, answers = plan.output_limit(route), plan.ask.limits.n
        tokens = max(1.0, means.mean(length, 1.0) * limit) * answers
        setting = progress.setting(route)
        nominal = whole_cost(setting, prompt, tokens / answers, answers)
        kv = route.profile.kv_bytes_per_token
        live = int(nominal.live_token_ms * means.mean(holding, 1.0))
        estimated = estimated._replace(
            prefill_us=int(nominal.prefill_ns * means.mean(reading, 1.0)) // 1000,
            decode_us=int(nominal.decode_ns * means.mean(writing, 1.0)) // 1000,
            transfer_bytes=int(_ID_BYTES * (prompt + tokens)),
            peak_bytes=_block_bytes(prompt + tokens, kv),
            live_bytes=int(kv * live * 1e6 / max(1.0, nominal.lasts_ns)),
            live_token_ms=live,
        )
        usage = progress.usage
        if usage is None:
            return estimated, _unfinished(progress, prompt, kv)
        means.observe(length, usage.generated_tokens / max(1, limit * answers))
        computed = max(1, prompt - usage.cached_tokens)
        real = whole_cost(setting, computed, usage.generated_tokens / answers, answers)
        means.observe(reading, usage.prefill_cpu_ns / max(1.0, real.prefill_ns))
        means.observe(writing, usage.decode_cpu_ns / max(1.0, real.decode_ns))
        means.observe(holding, usage.live_token_ms / max(1.0, real.live_token_ms))
        held_ms = max(1.0, (now_ns - progress.sent_ns) / 1e6)
        return estimated, Use(
            prefill_us=usage.prefill_cpu_ns // 1000,
            decode_us=usage.decode_cpu_ns // 1000,
            transfer_bytes=_ID_BYTES * (prompt + usage.generated_tokens),
            peak_bytes=_block_bytes(prompt + usage.generated_tokens, kv),
            live_bytes=int(kv * usage.live_token_ms / held_ms),
            live_token_ms=usage.live_token_ms,
        )


def _unfinished(progress: Progress, prompt: int, kv_bytes: int) -> Use:
    """What one that did not end well was charged; its worker had no account for anybody."""
    cost, tokens = progress.unfinished, prompt + progress.tokens
    if cost is None:
        return Use()
    return Use(
        prefill_us=int(cost.prefill_ns) // 1000,
        decode_us=int(cost.decode_ns) // 1000,
        transfer_bytes=_ID_BYTES * tokens,
        peak_bytes=_block_bytes(tokens, kv_bytes),
        live_bytes=int(kv_bytes * cost.live_token_ms * 1e6 / max(1.0, cost.lasts_ns)),
        live_token_ms=int(cost.live_token_ms),
    )


def _block_bytes(tokens: float, kv_bytes: int) -> int:
    """Bytes of the blocks that hold so many tokens."""
    blocks = -(-int(tokens) // KV_BLOCK_TOKENS)
    return blocks * KV_BLOCK_TOKENS * kv_bytes
