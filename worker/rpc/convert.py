"""Between the wire's messages and the worker's values."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protos.codec import Part, framed
from protos.orchid.v1 import common_pb2, fleet_pb2, worker_pb2
from worker.errors import InvalidInput, WorkerError
from worker.generation.records import LaneLoad
from worker.hosted import DecodeCapacity, ModelSnapshot, ModelState, VariantSnapshot
from worker.meter import LoadSample
from worker.models.manifest import Generation, TensorSpec
from worker.profile import VariantProfile
from worker.records import Batch, BatchOutcome, Item, ItemOutcome, LoopState
from worker.rpc.evidence import calibration_to, escalations_to, quality_to
from worker.rpc.status import status_of

DATA_TYPES: dict[str, common_pb2.DataType.ValueType] = {
    "bool": common_pb2.DATA_TYPE_BOOL,
    "uint8": common_pb2.DATA_TYPE_UINT8,
    "int8": common_pb2.DATA_TYPE_INT8,
    "int16": common_pb2.DATA_TYPE_INT16,
    "int32": common_pb2.DATA_TYPE_INT32,
    "int64": common_pb2.DATA_TYPE_INT64,
    "float16": common_pb2.DATA_TYPE_FLOAT16,
    "float32": common_pb2.DATA_TYPE_FLOAT32,
    "float64": common_pb2.DATA_TYPE_FLOAT64,
    "string": common_pb2.DATA_TYPE_STRING,
}
_FIXED = {
    number: np.dtype(name).newbyteorder("<")
    for name, number in DATA_TYPES.items()
    if name != "string"
}
# Hashing a dtype is cheap, asking for its name is not.
_NUMBERS = {
    np.dtype(object if name == "string" else name): number for name, number in DATA_TYPES.items()
}
_LITTLE = sys.byteorder == "little"
_STATES = {
    ModelState.LOADING: common_pb2.READINESS_STATE_LOADING,
    ModelState.WARMING: common_pb2.READINESS_STATE_WARMING,
    ModelState.READY: common_pb2.READINESS_STATE_READY,
    ModelState.FAILED: common_pb2.READINESS_STATE_FAILED,
    ModelState.UNLOADING: common_pb2.READINESS_STATE_UNLOADING,
}
_CLASSES = {
    "encoder": fleet_pb2.WORKER_CLASS_ENCODER,
    "decode": fleet_pb2.WORKER_CLASS_DECODE,
}
_TOKEN_IDS = np.dtype("<i4")


def batch_from(message: worker_pb2.Batch, arrived_ns: int) -> Batch:
    """A batch as it came; an item that cannot be decoded carries its fault."""
    return Batch(
        batch_id=message.batch_id,
        model=message.model,
        variant=message.variant,
        items=tuple(_item_from(item, arrived_ns) for item in message.items),
        arrived_ns=arrived_ns,
    )


def _item_from(message: worker_pb2.Item, arrived_ns: int) -> Item:
    deadline_ns = arrived_ns + message.budget_us * 1000
    tokens = message.tokens
    fault: WorkerError | None = None
    if not message.tensors:
        data = tokens.token_ids
        if len(data) % 4 == 0:
            return Item(
                item_id=message.item_id,
                deadline_ns=deadline_ns,
                token_ids=np.frombuffer(data, _TOKEN_IDS),
                lengths=tuple(tokens.lengths),
                traceparent=message.traceparent,
            )
        fault = InvalidInput(f"token_ids are int32, 4 bytes each; got {len(data)} bytes")
    elif tokens.lengths or tokens.token_ids:
        fault = InvalidInput("an item holds tokens or tensors; got both")
    tensors: dict[str, NDArray[Any]] = {}
    if fault is None:
        try:
            for tensor in message.tensors:
                if tensor.name in tensors:
                    raise InvalidInput(f"tensor {tensor.name!r} appears twice")
                tensors[tensor.name] = tensor_from(tensor)
        except InvalidInput as error:
            fault = error
    return Item(
        item_id=message.item_id,
        deadline_ns=deadline_ns,
        tensors=tensors,
        traceparent=message.traceparent,
        fault=fault,
    )


def tensor_from(message: common_pb2.Tensor) -> NDArray[Any]:
    """The array of a tensor, without a copy where its type is fixed; raises InvalidInput."""
    shape = tuple(message.shape)
    if any(size < 0 for size in shape):
        raise InvalidInput(f"tensor {message.name!r} has a negative size in shape {list(shape)}")
    elements = math.prod(shape)
    if message.data_type == common_pb2.DATA_TYPE_STRING:
        if len(message.strings) != elements:
            raise InvalidInput(
                f"tensor {message.name!r} of shape {list(shape)} holds {elements} strings, "
                f"got {len(message.strings)}"
            )
        array = np.empty(elements, dtype=object)
        array[:] = list(message.strings)
        return _shaped(message.name, array, shape)
    dtype = _FIXED.get(message.data_type)
    if dtype is None:
        raise InvalidInput(
            f"tensor {message.name!r} has data type {message.data_type}; "
            f"accepted are {', '.join(DATA_TYPES)}"
        )
    if len(message.data) != elements * dtype.itemsize:
        raise InvalidInput(
            f"tensor {message.name!r} {dtype.name}{list(shape)} takes "
            f"{elements * dtype.itemsize} bytes, got {len(message.data)}"
        )
    return _shaped(message.name, np.frombuffer(message.data, dtype), shape)


def _shaped(name: str, array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """The array in a shape of as many elements; numpy takes few dimensions and finite sizes."""
    try:
        return array.reshape(shape)
    except ValueError as error:
        raise InvalidInput(
            f"tensor {name!r} of {len(shape)} dimensions has no array: {error}"
        ) from None


def write_tensor(message: common_pb2.Tensor, name: str, array: NDArray[Any]) -> None:
    """Fills an empty message with the array's elements in row-major order."""
    _write_tensor_head(message, name, array)
    if array.dtype == object:
        message.strings.extend(s.encode() if isinstance(s, str) else s for s in array.flat)
    elif _LITTLE:
        message.data = array.tobytes()
    else:
        message.data = array.astype(array.dtype.newbyteorder("<")).tobytes()


def _write_tensor_head(message: common_pb2.Tensor, name: str, array: NDArray[Any]) -> None:
    message.name = name
    message.data_type = _NUMBERS[array.dtype]
    message.shape.extend(array.shape)


def _tensor_parts(name: str, array: NDArray[Any]) -> list[Part]:
    message = common_pb2.Tensor()
    if array.dtype == object or not _LITTLE:
        write_tensor(message, name, array)
        return [message.SerializeToString()]
    _write_tensor_head(message, name, array)
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return [message.SerializeToString(), *framed(message.DATA_FIELD_NUMBER, [data])]


def write_batch_result(
    message: worker_pb2.BatchResult, outcome: BatchOutcome, max_bytes: int
) -> None:
    """Fills an empty message; outputs that exceed a message become a status instead."""
    _write_result_head(message, outcome)
    add = message.items.add
    for item, result in zip(outcome.batch.items, _fitting(outcome, max_bytes), strict=True):
        written = add()
        _write_item_head(written, item.item_id, result)
        if not isinstance(result, WorkerError):
            for name, array in result.items():
                write_tensor(written.outputs.add(), name, array)


def batch_result_parts(outcome: BatchOutcome, max_bytes: int) -> list[Part]:
    """The bytes of the same message, in parts that still lie in the output arrays."""
    head = worker_pb2.BatchResult()
    _write_result_head(head, outcome)
    parts: list[Part] = [head.SerializeToString()]
    for item, result in zip(outcome.batch.items, _fitting(outcome, max_bytes), strict=True):
        written = worker_pb2.ItemResult()
        _write_item_head(written, item.item_id, result)
        inner: list[Part] = [written.SerializeToString()]
        if not isinstance(result, WorkerError):
            for name, array in result.items():
                inner += framed(written.OUTPUTS_FIELD_NUMBER, _tensor_parts(name, array))
        parts += framed(head.ITEMS_FIELD_NUMBER, inner)
    return parts


def _write_result_head(message: worker_pb2.BatchResult, outcome: BatchOutcome) -> None:
    message.batch_id = outcome.batch.batch_id
    message.queue_us = outcome.queue_ns // 1000
    message.run_us = outcome.run_ns // 1000
    message.cpu_us = outcome.cpu_ns // 1000
    message.tokens = outcome.tokens
    message.executed_items = outcome.executed_items
    message.peak_bytes = outcome.peak_bytes


def _fitting(outcome: BatchOutcome, max_bytes: int) -> tuple[ItemOutcome, ...]:
    size = output_bytes(outcome)
    if size <= max_bytes:
        return outcome.outcomes
    too_large = InvalidInput(
        f"the batch's outputs hold {size} bytes, more than a message may carry ({max_bytes})"
    )
    return tuple(o if isinstance(o, WorkerError) else too_large for o in outcome.outcomes)


def output_bytes(outcome: BatchOutcome) -> int:
    """Bytes of all output tensors of a batch."""
    return sum(
        array.nbytes
        for result in outcome.outcomes
        if not isinstance(result, WorkerError)
        for array in result.values()
    )


def _write_item_head(message: worker_pb2.ItemResult, item_id: int, outcome: ItemOutcome) -> None:
    message.item_id = item_id
    if isinstance(outcome, WorkerError):
        message.status = status_of(outcome)[0]
        message.message = str(outcome)
    else:
        message.status = worker_pb2.ITEM_STATUS_OK


def load_to(
    state: LoopState, sample: LoadSample, process_cpu_ns: int, lanes: Iterable[LaneLoad] = ()
) -> worker_pb2.WorkerLoad:
    """The worker's report of itself.

    `process_cpu_ns` is read after `state`, so that it holds all that the state counts.
    """
    return worker_pb2.WorkerLoad(
        queued_items=state.queued_items,
        running_items=state.running_items,
        process_cpu_percent=sample.process_cpu_percent,
        host_cpu_percent=sample.host_cpu_percent,
        resident_bytes=sample.resident_bytes,
        completed_items=state.completed_items,
        draining=state.draining,
        run_cpu_us=state.run_cpu_ns // 1000,
        expired_items_executed=state.expired_items_executed,
        throttled_periods=sample.throttled_periods,
        process_cpu_us=process_cpu_ns // 1000,
        decode=[
            worker_pb2.DecodeLoad(
                model=lane.model,
                variant=lane.variant,
                block_map=lane.block_map,
                **asdict(lane.state),
            )
            for lane in lanes
        ],
    )


def hello_to(
    *,
    worker_id: str,
    address: str,
    worker_class: str,
    threads: int,
    cpu_model: str,
    simd: str,
    engine_version: str,
    process_id: int,
) -> fleet_pb2.WorkerHello:
    """What a worker says of itself when it registers; `worker_class` is encoder or decode."""
    return fleet_pb2.WorkerHello(
        worker_id=worker_id,
        address=address,
        worker_class=_CLASSES[worker_class],
        threads=threads,
        cpu_model=cpu_model,
        simd=simd,
        engine_version=engine_version,
        process_id=process_id,
    )


def model_to(snapshot: ModelSnapshot, *, documents: bool = False) -> common_pb2.ModelDescription:
    """A model as it is served, with tokenizer documents when asked; raises OSError for those."""
    manifest = snapshot.manifest
    return common_pb2.ModelDescription(
        name=manifest.name,
        version=manifest.version,
        task=manifest.task,
        manifest_digest=snapshot.digest,
        labels=manifest.labels,
        default_tokenizer=manifest.default_tokenizer,
        tokenizers=[
            common_pb2.Tokenizer(
                name=name,
                sha256=ref.sha256,
                document=(snapshot.folder / ref.path).read_bytes() if documents else b"",
            )
            for name, ref in manifest.tokenizers.items()
        ],
        variants=[_variant_to(variant) for variant in snapshot.variants],
        state=_STATES[snapshot.state],
        progress=snapshot.progress,
        failure=snapshot.failure,
        primary_output=manifest.primary_output,
        generation=None if manifest.generation is None else _generation_to(manifest.generation),
    )


def _generation_to(settings: Generation) -> common_pb2.GenerationSettings:
    return common_pb2.GenerationSettings(
        chat_template=settings.chat_template,
        end_tokens=settings.end_tokens,
        begin_token=settings.begin_token,
        vocabulary=settings.vocabulary,
        context=settings.context,
    )


def unreadable_to(name: str, failure: str) -> common_pb2.ModelDescription:
    """A model whose manifest tells nothing but why it cannot be loaded."""
    return common_pb2.ModelDescription(
        name=name, state=common_pb2.READINESS_STATE_FAILED, failure=failure
    )


def _variant_to(snapshot: VariantSnapshot) -> common_pb2.VariantDescription:
    variant = snapshot.variant
    return common_pb2.VariantDescription(
        name=variant.name,
        layout=variant.layout,
        precision=variant.precision,
        tokenizer=variant.tokenizer,
        inputs=_specs_to(variant.inputs),
        outputs=_specs_to(variant.outputs),
        quality=[quality_to(quality) for quality in variant.quality],
        profile=None if snapshot.profile is None else _profile_to(snapshot.profile),
        ready=snapshot.ready,
        max_tokens=variant.max_tokens,
        resident_bytes=snapshot.resident_bytes,
        decode=None if snapshot.decode is None else _decode_to(snapshot.decode),
        calibrations=[calibration_to(item) for item in variant.calibrations],
        escalations=escalations_to(variant),
    )


def _decode_to(capacity: DecodeCapacity) -> common_pb2.DecodeProfile:
    profile = common_pb2.DecodeProfile(
        kv_bytes_per_token=capacity.token_bytes, arena_tokens=capacity.arena_tokens
    )
    if capacity.cost is not None:
        profile.step_us = capacity.cost.step_us
        profile.prefill_us_per_token = capacity.cost.prefill_us_per_token
        profile.sequence_us = capacity.cost.sequence_us
        profile.cached_us_per_token = capacity.cost.cached_us_per_token
        profile.sigma = capacity.cost.sigma
    return profile


def _specs_to(specs: Iterable[TensorSpec]) -> list[common_pb2.TensorSpec]:
    return [
        common_pb2.TensorSpec(name=spec.name, data_type=DATA_TYPES[spec.dtype], shape=spec.shape)
        for spec in specs
    ]


def _profile_to(profile: VariantProfile) -> common_pb2.VariantProfile:
    return common_pb2.VariantProfile(
        variant=profile.variant,
        s0_us=profile.s0_us,
        s1_us_per_token=profile.s1_us_per_token,
        s2_us_per_token2=profile.s2_us_per_token2,
        reference_tokens=profile.reference_tokens,
        p50_us=profile.p50_us,
        p95_us=profile.p95_us,
        p99_us=profile.p99_us,
        sigma=profile.sigma,
        samples=profile.samples,
    )
