"""Messages between the control plane and its workers, to and from domain values."""

from __future__ import annotations

from collections.abc import Iterable

from controlplane.policy.cascade import Calibration, Escalation
from controlplane.policy.decode import DecodeLoad, DecodeProfile
from controlplane.policy.profiles import VariantProfile
from controlplane.policy.records import Request, TensorPayload, TensorValue, TokenPayload
from controlplane.registry import (
    GenerationSettings,
    ModelInfo,
    ModelState,
    QualityEvidence,
    TensorSpec,
    TokenizerInfo,
    VariantInfo,
    WorkerIdentity,
    WorkerLoad,
)
from controlplane.rpc.convert import BY_CODE, STRING, write_native
from controlplane.work import BatchDone, ItemDone, ItemStatus, WorkBatch
from protos.codec import Part, framed
from protos.orchid.v1 import common_pb2, fleet_pb2, worker_pb2

_DATA = common_pb2.Tensor.DATA_FIELD_NUMBER
_STATES = {
    common_pb2.READINESS_STATE_LOADING: ModelState.LOADING,
    common_pb2.READINESS_STATE_WARMING: ModelState.WARMING,
    common_pb2.READINESS_STATE_READY: ModelState.READY,
    common_pb2.READINESS_STATE_FAILED: ModelState.FAILED,
    common_pb2.READINESS_STATE_UNLOADING: ModelState.UNLOADING,
}

_STATUSES = {
    worker_pb2.ITEM_STATUS_OK: ItemStatus.OK,
    worker_pb2.ITEM_STATUS_EXPIRED: ItemStatus.EXPIRED,
    worker_pb2.ITEM_STATUS_CANCELLED: ItemStatus.CANCELLED,
    worker_pb2.ITEM_STATUS_INVALID_ARGUMENT: ItemStatus.INVALID_ARGUMENT,
    worker_pb2.ITEM_STATUS_NOT_FOUND: ItemStatus.NOT_FOUND,
    worker_pb2.ITEM_STATUS_UNAVAILABLE: ItemStatus.UNAVAILABLE,
    worker_pb2.ITEM_STATUS_INTERNAL: ItemStatus.INTERNAL,
}


def write_batch(batch: WorkBatch, now_ns: int, into: worker_pb2.Batch) -> None:
    """Fill a wire batch; each item carries the time that is left now."""
    into.batch_id = batch.id
    into.model = batch.model
    into.variant = batch.variant
    for request, item_id in zip(batch.requests, batch.item_ids, strict=True):
        item = into.items.add(item_id=item_id, budget_us=(request.deadline_ns - now_ns) // 1000)
        if request.traceparent:
            item.traceparent = request.traceparent
        payload = request.payload
        if isinstance(payload, TensorPayload):
            item.tensors.extend(write_native(tensor) for tensor in payload.tensors)
        else:
            _write_tokens(payload, batch.tokenizer, item)


def large_batch_parts(batch: WorkBatch, now_ns: int) -> list[Part]:
    """The bytes of an ExecuteRequest that carries this batch alone, its tensors uncopied."""
    head = worker_pb2.Batch(batch_id=batch.id, model=batch.model, variant=batch.variant)
    parts: list[Part] = [head.SerializeToString()]
    for request, item_id in zip(batch.requests, batch.item_ids, strict=True):
        item = worker_pb2.Item(
            item_id=item_id,
            budget_us=(request.deadline_ns - now_ns) // 1000,
            traceparent=request.traceparent,
        )
        payload = request.payload
        inner: list[Part] = []
        if isinstance(payload, TensorPayload):
            for tensor in payload.tensors:
                small = write_native(tensor._replace(data=b""))
                content = [small.SerializeToString(), *framed(_DATA, [tensor.data])]
                inner += framed(item.TENSORS_FIELD_NUMBER, content)
        else:
            _write_tokens(payload, batch.tokenizer, item)
        parts += framed(head.ITEMS_FIELD_NUMBER, [item.SerializeToString(), *inner])
    return framed(worker_pb2.ExecuteRequest.BATCHES_FIELD_NUMBER, parts)


def _write_tokens(payload: object, tokenizer: str, item: worker_pb2.Item) -> None:
    if not isinstance(payload, TokenPayload):
        raise TypeError(f"a request's payload is a {type(payload).__name__}")
    tokens = item.tokens
    tokens.token_ids = payload.ids[tokenizer]
    tokens.lengths.extend(payload.lengths[tokenizer])


def payload_bytes(request: Request, tokenizer: str) -> int:
    """About how much room a request takes in a message."""
    payload = request.payload
    if isinstance(payload, TokenPayload):
        return len(payload.ids[tokenizer]) + 5 * len(payload.lengths[tokenizer])
    if isinstance(payload, TensorPayload):
        return sum(
            len(t.data) + sum(len(s) + 6 for s in t.strings) + len(t.name) + 64
            for t in payload.tensors
        )
    return 0


def read_done(result: worker_pb2.BatchResult) -> BatchDone:
    """The end of a batch."""
    return BatchDone(
        id=result.batch_id,
        items=tuple([_read_item(item) for item in result.items]),
        queue_ns=result.queue_us * 1000,
        run_ns=result.run_us * 1000,
        cpu_ns=result.cpu_us * 1000,
        executed_items=result.executed_items,
        peak_bytes=result.peak_bytes,
    )


def _read_item(item: worker_pb2.ItemResult) -> ItemDone:
    try:
        outputs = tuple([_read_tensor(tensor) for tensor in item.outputs])
    except KeyError as error:
        text = f"an output has the unknown data type {error}"
        return ItemDone(item.item_id, ItemStatus.INTERNAL, (), text)
    status = _STATUSES.get(item.status, ItemStatus.INTERNAL)
    if status is ItemStatus.OK:
        return ItemDone(item.item_id, status, outputs)
    return ItemDone(item.item_id, status, outputs, item.message)


def read_load(load: worker_pb2.WorkerLoad) -> WorkerLoad:
    """A load report."""
    return WorkerLoad(
        queued_items=load.queued_items,
        running_items=load.running_items,
        process_cpu_percent=load.process_cpu_percent,
        host_cpu_percent=load.host_cpu_percent,
        resident_bytes=load.resident_bytes,
        completed_items=load.completed_items,
        draining=load.draining,
        run_cpu_ns=load.run_cpu_us * 1000,
        expired_items_executed=load.expired_items_executed,
        throttled_periods=load.throttled_periods,
        decode=tuple([_read_decode_load(each) for each in load.decode]) if load.decode else (),
        process_cpu_ns=load.process_cpu_us * 1000,
    )


def _read_decode_load(load: worker_pb2.DecodeLoad) -> DecodeLoad:
    return DecodeLoad(
        model=load.model,
        variant=load.variant,
        waiting=load.waiting,
        prefilling=load.prefilling,
        decoding=load.decoding,
        pending_prompt_tokens=load.pending_prompt_tokens,
        cached_tokens=load.cached_tokens,
        total_blocks=load.total_blocks,
        free_blocks=load.free_blocks,
        evictable_blocks=load.evictable_blocks,
        generated_tokens=load.generated_tokens,
        prefix_hit_tokens=load.prefix_hit_tokens,
        preemptions=load.preemptions,
        shed=load.shed,
        block_map=load.block_map,
        live_token_ms=load.live_token_ms,
        pending_by_account=dict(load.pending_by_account) or None,
    )


def write_decode_load(load: DecodeLoad) -> worker_pb2.DecodeLoad:
    """The state of an arena as it came."""
    return worker_pb2.DecodeLoad(**load._asdict())


def write_load(load: WorkerLoad) -> worker_pb2.WorkerLoad:
    """A load report as it came."""
    return worker_pb2.WorkerLoad(
        queued_items=load.queued_items,
        running_items=load.running_items,
        process_cpu_percent=load.process_cpu_percent,
        host_cpu_percent=load.host_cpu_percent,
        resident_bytes=load.resident_bytes,
        completed_items=load.completed_items,
        draining=load.draining,
        run_cpu_us=load.run_cpu_ns // 1000,
        expired_items_executed=load.expired_items_executed,
        throttled_periods=load.throttled_periods,
        decode=map(write_decode_load, load.decode),
        process_cpu_us=load.process_cpu_ns // 1000,
    )


def read_hello(hello: fleet_pb2.WorkerHello) -> WorkerIdentity:
    """What a worker says of itself."""
    return WorkerIdentity(
        id=hello.worker_id,
        address=hello.address,
        threads=hello.threads,
        cpu_model=hello.cpu_model,
        simd=hello.simd,
        engine_version=hello.engine_version,
        process_id=hello.process_id,
        decodes=hello.worker_class == fleet_pb2.WORKER_CLASS_DECODE,
    )


def write_hello(identity: WorkerIdentity) -> fleet_pb2.WorkerHello:
    """The same, as it came."""
    return fleet_pb2.WorkerHello(
        worker_id=identity.id,
        address=identity.address,
        worker_class=(
            fleet_pb2.WORKER_CLASS_DECODE if identity.decodes else fleet_pb2.WORKER_CLASS_ENCODER
        ),
        threads=identity.threads,
        cpu_model=identity.cpu_model,
        simd=identity.simd,
        engine_version=identity.engine_version,
        process_id=identity.process_id,
    )


def read_models(models: Iterable[common_pb2.ModelDescription]) -> tuple[ModelInfo, ...]:
    """The models of one worker."""
    return tuple(map(_read_model, models))


def _read_model(model: common_pb2.ModelDescription) -> ModelInfo:
    """A model without the variants of tensors that are not known here; `failure` names them."""
    strange = {v.name: why for v in model.variants if (why := _strangeness(v))}
    state = _STATES.get(model.state, ModelState.LOADING)
    if strange and len(strange) == len(model.variants):
        state = ModelState.FAILED
    told = [model.failure] if model.failure else []
    return ModelInfo(
        name=model.name,
        version=model.version,
        task=model.task,
        labels=tuple(model.labels),
        manifest_digest=model.manifest_digest,
        default_tokenizer=model.default_tokenizer,
        primary_output=model.primary_output,
        tokenizers=tuple(TokenizerInfo(t.name, t.sha256) for t in model.tokenizers),
        variants=tuple(_read_variant(v) for v in model.variants if v.name not in strange),
        state=state,
        progress=model.progress,
        failure="; ".join(told + [f"variant {name!r}: {why}" for name, why in strange.items()]),
        generation=_read_settings(model.generation) if model.HasField("generation") else None,
    )


def _read_settings(settings: common_pb2.GenerationSettings) -> GenerationSettings:
    return GenerationSettings(
        chat_template=settings.chat_template,
        end_tokens=tuple(settings.end_tokens),
        begin_token=settings.begin_token if settings.HasField("begin_token") else None,
        vocabulary=settings.vocabulary,
        context=settings.context,
    )


def _strangeness(variant: common_pb2.VariantDescription) -> str:
    """Why a variant cannot be asked from here, empty when it can."""
    for spec in (*variant.inputs, *variant.outputs):
        if spec.data_type not in BY_CODE:
            return f"tensor {spec.name!r} has unknown data type {spec.data_type}"
    return ""


def _read_variant(variant: common_pb2.VariantDescription) -> VariantInfo:
    return VariantInfo(
        name=variant.name,
        layout=variant.layout,
        precision=variant.precision,
        tokenizer=variant.tokenizer,
        inputs=tuple(map(_read_spec, variant.inputs)),
        outputs=tuple(map(_read_spec, variant.outputs)),
        quality=tuple(
            QualityEvidence(q.population, q.metric, q.value, q.n, q.low, q.high)
            for q in variant.quality
        ),
        profile=_read_profile(variant.profile) if variant.HasField("profile") else None,
        max_tokens=variant.max_tokens,
        ready=variant.ready,
        resident_bytes=variant.resident_bytes,
        decode=_read_decode_profile(variant.decode) if variant.HasField("decode") else None,
        calibrations=tuple(
            (c.population, Calibration(c.temperature, tuple(c.beta))) for c in variant.calibrations
        ),
        escalations=tuple(
            (
                e.population,
                Escalation(
                    first=variant.name,
                    to=e.to,
                    confidences=tuple(e.confidences),
                    gains=tuple(e.gains),
                    counts=tuple(e.counts),
                    shares_right=tuple(e.shares_right),
                ),
            )
            for e in variant.escalations
        ),
    )


def _read_decode_profile(profile: common_pb2.DecodeProfile) -> DecodeProfile:
    return DecodeProfile(
        step_ns=profile.step_us * 1e3,
        prefill_ns=profile.prefill_us_per_token * 1e3,
        sequence_ns=profile.sequence_us * 1e3,
        cached_ns=profile.cached_us_per_token * 1e3,
        sigma=profile.sigma,
        kv_bytes_per_token=profile.kv_bytes_per_token,
        arena_tokens=profile.arena_tokens,
    )


def write_decode_profile(profile: DecodeProfile) -> common_pb2.DecodeProfile:
    """A decoder's profile as it came."""
    return common_pb2.DecodeProfile(
        step_us=profile.step_ns / 1e3,
        prefill_us_per_token=profile.prefill_ns / 1e3,
        sequence_us=profile.sequence_ns / 1e3,
        cached_us_per_token=profile.cached_ns / 1e3,
        sigma=profile.sigma,
        kv_bytes_per_token=profile.kv_bytes_per_token,
        arena_tokens=profile.arena_tokens,
    )


def _read_profile(profile: common_pb2.VariantProfile) -> VariantProfile:
    return VariantProfile(
        s0_ns=profile.s0_us * 1e3,
        s1_ns=profile.s1_us_per_token * 1e3,
        s2_ns=profile.s2_us_per_token2 * 1e3,
        sigma=profile.sigma,
        reference_tokens=profile.reference_tokens,
        p50_ns=profile.p50_us * 1e3,
        p95_ns=profile.p95_us * 1e3,
        p99_ns=profile.p99_us * 1e3,
        samples=profile.samples,
    )


def _read_spec(spec: common_pb2.TensorSpec) -> TensorSpec:
    return TensorSpec(spec.name, _dtype(spec.data_type), tuple(spec.shape))


def _read_tensor(tensor: common_pb2.Tensor) -> TensorValue:
    dtype, shape = _dtype(tensor.data_type), tuple(tensor.shape)
    if dtype == STRING:
        return TensorValue(tensor.name, dtype, shape, strings=tuple(tensor.strings))
    return TensorValue(tensor.name, dtype, shape, tensor.data)


def _dtype(code: int) -> str:
    return BY_CODE[code].dtype
