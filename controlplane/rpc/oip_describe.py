"""Models as the Open Inference Protocol describes them: metadata, configuration, counters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from google.protobuf.json_format import MessageToDict

from controlplane.registry import ModelState
from controlplane.rpc.asks import LIMITS
from controlplane.rpc.catalogue import ModelView
from controlplane.rpc.convert import BY_DTYPE
from controlplane.rpc.oip_request import IDS, MASK, TEXT
from controlplane.rpc.statistics import BatchCounters, Duration, ModelCounters
from protos.inference import model_config_pb2, oip_pb2

PLATFORM = "onnxruntime_onnx"
BACKEND = "orchid"
SERVER_NAME = "orchid"
GENERATE = "orchid.v1.Inference/Generate"
EXTENSIONS = (
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "statistics",
    "binary_tensor_data",
)

# The batch dimension comes first; token rows may have any length.
_TEXT_INPUTS = ((TEXT, "BYTES", (-1, 1)), (IDS, "INT64", (-1, -1)), (MASK, "INT64", (-1, -1)))

# The configuration's name of each protocol datatype.
_CONFIG_TYPES = {
    "BOOL": model_config_pb2.TYPE_BOOL,
    "UINT8": model_config_pb2.TYPE_UINT8,
    "INT8": model_config_pb2.TYPE_INT8,
    "INT16": model_config_pb2.TYPE_INT16,
    "INT32": model_config_pb2.TYPE_INT32,
    "INT64": model_config_pb2.TYPE_INT64,
    "FP16": model_config_pb2.TYPE_FP16,
    "FP32": model_config_pb2.TYPE_FP32,
    "FP64": model_config_pb2.TYPE_FP64,
    "BYTES": model_config_pb2.TYPE_STRING,
}

_STATES = {
    ModelState.READY: "READY",
    ModelState.LOADING: "LOADING",
    ModelState.WARMING: "LOADING",
    ModelState.UNLOADING: "UNLOADING",
    ModelState.FAILED: "UNAVAILABLE",
}

# Name, datatype and shape.
Described = tuple[str, str, Sequence[int]]


def metadata(view: ModelView) -> oip_pb2.ModelMetadataResponse:
    """Names, types and shapes of a model; token models also take text.

    A model that generates has no tensors: it is not asked through this protocol.
    """
    return oip_pb2.ModelMetadataResponse(
        name=view.info.name,
        versions=[view.info.version],
        platform=PLATFORM,
        inputs=_metadata_tensors(inputs_of(view)),
        outputs=_metadata_tensors(outputs_of(view)),
    )


def configuration(view: ModelView, instances: int) -> model_config_pb2.ModelConfig:
    """The configuration that load generators read; `instances` are the live workers.

    For token models the batch dimension is left out of the shapes, as the protocol has
    it for models with a `max_batch_size`, and every input is optional: a request brings
    either text or ids.
    """
    batched = view.takes_text and not view.info.generates
    config = model_config_pb2.ModelConfig(
        name=view.info.name,
        platform=PLATFORM,
        backend=BACKEND,
        max_batch_size=LIMITS.items if batched else 0,
    )
    config.version_policy.latest.num_versions = 1
    config.model_transaction_policy.decoupled = False
    for name, datatype, shape in inputs_of(view):
        config.input.add(
            name=name,
            data_type=_CONFIG_TYPES[datatype],
            dims=shape[1:] if batched else shape,
            optional=batched,
            allow_ragged_batch=batched,
        )
    for name, datatype, shape in outputs_of(view):
        config.output.add(
            name=name, data_type=_CONFIG_TYPES[datatype], dims=shape[1:] if batched else shape
        )
    config.instance_group.add(
        name=view.info.name, count=instances, kind=model_config_pb2.ModelInstanceGroup.KIND_CPU
    )
    facts = {
        "task": view.info.task,
        "manifest_digest": view.info.manifest_digest,
        "labels": ",".join(view.info.labels),
        "variants": ",".join(variant.name for variant in view.info.variants),
        "tokenizers": ",".join(view.tokenizers),
        "default_tokenizer": view.info.default_tokenizer,
    }
    settings = view.info.generation
    if settings is not None:
        facts |= {"context": str(settings.context), "asked_with": GENERATE}
    for key, value in facts.items():
        if value:
            config.parameters[key].string_value = value
    return config


def configuration_document(view: ModelView, instances: int) -> dict[str, object]:
    """The same configuration in JSON's values, every number a number."""
    document = MessageToDict(configuration(view, instances), preserving_proto_field_name=True)
    # Protobuf's own mapping makes strings of 64-bit integers and leaves out what is 0 or false.
    for tensor in (*document.get("input", ()), *document.get("output", ())):
        tensor["dims"] = [int(size) for size in tensor.get("dims", ())]
    document.setdefault("max_batch_size", 0)
    document["model_transaction_policy"] = {"decoupled": False}
    return document


def standing(view: ModelView) -> tuple[str, str]:
    """A model's state as the repository index has it, and what it waits for."""
    info = view.info
    state, reason = _STATES[info.state], info.failure
    if info.state is ModelState.READY and not info.ready:
        state, reason = "LOADING", reason or "no variant is ready yet"
    elif info.state in (ModelState.LOADING, ModelState.WARMING):
        reason = reason or f"{info.state.value}, {info.progress:.0%}"
    return state, reason


def index_entry(view: ModelView) -> oip_pb2.RepositoryIndexResponse.ModelIndex:
    """One line of the repository index."""
    state, reason = standing(view)
    return oip_pb2.RepositoryIndexResponse.ModelIndex(
        name=view.info.name, version=view.info.version, state=state, reason=reason
    )


def statistics(counters: ModelCounters) -> oip_pb2.ModelStatistics:
    """A model's counters since the process started."""
    return oip_pb2.ModelStatistics(
        name=counters.name,
        version=counters.version,
        last_inference=counters.last_inference_ms,
        inference_count=counters.inferences,
        execution_count=counters.executions,
        inference_stats=oip_pb2.InferStatistics(
            success=_duration(counters.success),
            fail=_duration(counters.fail),
            queue=_duration(counters.queue),
            compute_input=_duration(counters.compute_input),
            compute_infer=_duration(counters.compute_infer),
            compute_output=_duration(counters.compute_output),
        ),
        batch_stats=[_batch(counters.batches[size]) for size in sorted(counters.batches)],
    )


def _duration(duration: Duration) -> oip_pb2.StatisticDuration:
    return oip_pb2.StatisticDuration(count=duration.count, ns=duration.ns)


def _batch(batch: BatchCounters) -> oip_pb2.InferBatchStatistics:
    """Runs of one batch size; a run's time is the mean over its members."""

    def runs(ns: int) -> oip_pb2.StatisticDuration:
        return oip_pb2.StatisticDuration(count=batch.runs, ns=ns // batch.size)

    return oip_pb2.InferBatchStatistics(
        batch_size=batch.size,
        compute_input=runs(batch.input_ns),
        compute_infer=runs(batch.infer_ns),
        compute_output=runs(batch.output_ns),
    )


def inputs_of(view: ModelView) -> Iterable[Described]:
    """What a model takes; nothing where it generates."""
    if view.info.generates:
        return ()
    if view.takes_text:
        return _TEXT_INPUTS
    return [(spec.name, BY_DTYPE[spec.dtype].oip, spec.shape) for spec in view.inputs.values()]


def outputs_of(view: ModelView) -> list[Described]:
    """What every variant of a model gives; nothing where it generates."""
    if view.info.generates:
        return []
    return [(spec.name, BY_DTYPE[spec.dtype].oip, spec.shape) for spec in view.outputs.values()]


def _metadata_tensors(
    tensors: Iterable[Described],
) -> list[oip_pb2.ModelMetadataResponse.TensorMetadata]:
    return [
        oip_pb2.ModelMetadataResponse.TensorMetadata(name=name, datatype=datatype, shape=shape)
        for name, datatype, shape in tensors
    ]
