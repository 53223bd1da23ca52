"""Reads a ModelInfer request of the Open Inference Protocol into a checked ask."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from controlplane.errors import InvalidRequest
from controlplane.policy.records import RequestClass, TensorValue, TokenPayload
from controlplane.rpc.asks import (
    LIMITS,
    MAX_NAME,
    NO_CLASS,
    Ask,
    TokenRows,
    check_texts,
    explicit_deadline,
    request_class,
    tensor_ask,
    token_ask,
)
from controlplane.rpc.catalogue import ModelView
from controlplane.rpc.convert import (
    BY_OIP,
    STRING,
    check_zeros,
    id_bytes,
    read_oip,
    read_strings,
    token_rows,
    unframe,
)
from controlplane.rpc.oip_message import RAW, TYPED, InferMessage, Plan, Wanted, whole
from controlplane.rpc.status import listed, shown
from protos.inference.oip_pb2 import InferParameter, ModelInferRequest

TEXT = "text"
IDS = "input_ids"
MASK = "attention_mask"
TYPES = "token_type_ids"
TEXT_INPUTS = (TEXT, IDS, MASK, TYPES)

_WHOLE = ("int64", "int32")
_MASKS = (*_WHOLE, "bool")
_SHARED_MEMORY = "shared_memory_region"


class _Settings(NamedTuple):
    """What the request's parameters say; parameters that are not ours are accepted."""

    strings: Mapping[str, str]
    minimum_quality: float = 0.0
    deadline_ns: int = 0
    binary: bool | None = None
    approximation: bool = True


_NO_SETTINGS = _Settings({})
_STRINGS = frozenset(
    ("tenant", "request_class", "privacy_class", "variant", "prohibited_variants", "tokenizer")
)


def read_infer(request: ModelInferRequest, view: ModelView) -> tuple[Ask, Wanted]:
    """The same as `read_message` for a request that protobuf has read."""
    return read_message(whole(request), view)


def read_message(message: InferMessage, view: ModelView) -> tuple[Ask, Wanted]:
    """The ask of a request and how its answer is to be written.

    Raises InvalidRequest, NotFound (variant, tokenizer), Unavailable or TooLate; each names
    what was sent and what is accepted.
    """
    head, raw = message.head, message.raw
    plan = head.plan
    if plan is not None and head.view is view:
        known = _by_plan(plan, raw, view)
        if known is not None:
            return known, plan.wanted
    ask, wanted = _read(head.message, raw, view)
    if head.kept:
        head.view, head.plan = view, _plan(head.message, raw, ask, wanted)
    return ask, wanted


def _plan(
    request: ModelInferRequest, raw: Sequence[bytes], ask: Ask, wanted: Wanted
) -> Plan | None:
    """How requests with this head are read from now on; None when each is read anew."""
    if len(raw) != 1 or not ask.view.takes_text:
        return None
    tensor = request.inputs[0]
    plan = Plan(ask.klass, ask.deadline_ns, wanted, tensor.name, len(ask.texts))
    if ask.texts:
        return plan
    assert isinstance(ask.payload, TokenPayload)
    tokenizer = next(iter(ask.payload.ids))
    return plan._replace(
        tokenizer=tokenizer,
        dtype=BY_OIP[tensor.datatype].dtype,
        size=len(raw[0]),
        lengths=ask.payload.lengths,
        shapes=ask.shapes,
    )


def _by_plan(plan: Plan, raw: Sequence[bytes], view: ModelView) -> Ask | None:
    """An ask with a known head; None for contents that do not fit it, which reading names."""
    if len(raw) != 1:
        return None
    data = raw[0]
    tokenizer = plan.tokenizer
    if not tokenizer:
        strings = unframe(plan.name, data, plan.texts)
        check_texts(strings)
        texts = read_strings(TensorValue(plan.name, STRING, (plan.texts,), strings=strings))
        return Ask(view, plan.klass, plan.deadline_ns, texts)
    if len(data) != plan.size:
        return None
    ids, highest = id_bytes(plan.name, plan.dtype, data)
    payload = TokenPayload({tokenizer: ids}, plan.lengths)
    return Ask(view, plan.klass, plan.deadline_ns, (), payload, plan.shapes, highest)


def _read(request: ModelInferRequest, raw: Sequence[bytes], view: ModelView) -> tuple[Ask, Wanted]:
    view.require_inputs()
    settings = _read_parameters(request.parameters) if request.parameters else _NO_SETTINGS
    strings, deadline = settings.strings, settings.deadline_ns
    plain = not strings and not settings.minimum_quality and settings.approximation
    klass = NO_CLASS if plain else _read_class(settings, view)
    tensors = _read_inputs(request.inputs, raw)
    wanted = _read_wanted(request, view, settings, typed=not raw)
    return ask_of(view, klass, deadline, tensors, strings.get("tokenizer", "")), wanted


def ask_of(
    view: ModelView,
    klass: RequestClass,
    deadline_ns: int,
    tensors: tuple[TensorValue, ...],
    tokenizer: str,
) -> Ask:
    """The ask of a request's inputs; `tokenizer` is the one that was named, empty for none.

    Raises InvalidRequest for inputs that the model does not take, NotFound for a tokenizer.
    """
    if not view.takes_text:
        if tokenizer:
            raise InvalidRequest(f"model {shown(view.info.name)} has no tokenizers")
        return tensor_ask(view, klass, deadline_ns, tensors)
    given = _by_name(tensors, view)
    text = given.get(TEXT)
    if text is not None:
        if len(given) > 1 or tokenizer:
            raise InvalidRequest(
                f"input {TEXT!r} comes alone; {IDS!r}, {MASK!r} and parameter 'tokenizer' "
                "are for requests of token ids"
            )
        return Ask(view, klass, deadline_ns, texts=_read_texts(text))
    tokenizer = view.tokenizer(tokenizer)
    rows = _read_rows(given, view)
    return token_ask(view, klass, deadline_ns, tokenizer=tokenizer, rows=rows)


def _read_class(settings: _Settings, view: ModelView) -> RequestClass:
    strings = settings.strings
    get = strings.get
    return request_class(
        view,
        tenant=get("tenant", ""),
        name=get("request_class", ""),
        privacy_class=get("privacy_class", ""),
        minimum_quality=settings.minimum_quality,
        prohibited=split_names(strings["prohibited_variants"])
        if "prohibited_variants" in strings
        else (),
        variant=get("variant", ""),
        approximation=settings.approximation,
    )


def _read_inputs(
    inputs: Sequence[ModelInferRequest.InferInputTensor], raw: Sequence[bytes]
) -> tuple[TensorValue, ...]:
    if len(inputs) > LIMITS.names:
        raise InvalidRequest(f"{len(inputs)} inputs in one request; at most {LIMITS.names}")
    if not raw:
        _check_shared_memory(inputs)
        return tuple([read_oip(tensor, None) for tensor in inputs])
    if len(raw) != len(inputs):
        _check_shared_memory(inputs)
        raise InvalidRequest(
            f"raw_input_contents has {len(raw)} entries for {len(inputs)} inputs; "
            "accepted: one for each"
        )
    tensors = []
    for tensor, data in zip(inputs, raw, strict=True):
        if tensor.HasField("contents"):
            raise InvalidRequest(
                f"input {shown(tensor.name)} has typed contents beside raw_input_contents; "
                "accepted: one or the other"
            )
        tensors.append(read_oip(tensor, data))
    return tuple(tensors)


def _check_shared_memory(inputs: Iterable[ModelInferRequest.InferInputTensor]) -> None:
    """InvalidRequest when an input without content says that it is in shared memory."""
    for tensor in inputs:
        if _SHARED_MEMORY in tensor.parameters:
            raise InvalidRequest(
                f"input {shown(tensor.name)} is in shared memory; accepted: raw_input_contents "
                "or typed contents"
            )


def _by_name(tensors: Sequence[TensorValue], view: ModelView) -> dict[str, TensorValue]:
    given = {tensor.name: tensor for tensor in tensors}
    for name in given:
        if name not in TEXT_INPUTS:
            raise InvalidRequest(
                f"model {shown(view.info.name)} has no input {shown(name)}; "
                f"inputs: {listed(TEXT_INPUTS)}"
            )
    if len(given) != len(tensors):
        raise InvalidRequest(f"an input is given twice; inputs: {listed(TEXT_INPUTS)}")
    return given


def _read_texts(tensor: TensorValue) -> tuple[str, ...]:
    _check_dtype(tensor, (STRING,))
    shape = tensor.shape
    if not (len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)):
        raise InvalidRequest(f"input {TEXT!r} has shape {list(shape)}; accepted: [N] or [N, 1]")
    check_texts(tensor.strings)
    return read_strings(tensor)


def _read_rows(given: Mapping[str, TensorValue], view: ModelView) -> TokenRows:
    ids = given.get(IDS)
    if ids is None:
        raise InvalidRequest(
            f"model {shown(view.info.name)} needs input {TEXT!r} or {IDS!r}; got: {listed(given)}"
        )
    _check_dtype(ids, _WHOLE)
    mask, types = given.get(MASK), given.get(TYPES)
    if mask is not None:
        _check_dtype(mask, _MASKS)
    if types is not None:
        _check_dtype(types, _WHOLE)
        check_zeros(types)
    return token_rows(ids, mask)


def _check_dtype(tensor: TensorValue, accepted: Sequence[str]) -> None:
    if tensor.dtype not in accepted:
        raise InvalidRequest(
            f"input {shown(tensor.name)} is {tensor.dtype}; accepted: {listed(accepted)}"
        )


def _read_parameters(parameters: Mapping[str, InferParameter]) -> _Settings:
    if len(parameters) > LIMITS.names:
        raise InvalidRequest(f"{len(parameters)} parameters in one request; at most {LIMITS.names}")
    strings: dict[str, str] = {}
    quality, deadline, binary, approximation = 0.0, 0, None, True
    for name, parameter in parameters.items():
        if name in _STRINGS:
            strings[name] = _string(name, parameter)
        elif name == "minimum_quality":
            quality = _number(name, parameter)
        elif name == "deadline_ms":
            asked = explicit_deadline(_number(name, parameter), unit_ns=1_000_000, field=name)
            deadline = min(deadline or asked, asked or deadline)
        elif name == "timeout":
            asked = explicit_deadline(_number(name, parameter), unit_ns=1_000, field=name)
            deadline = min(deadline or asked, asked or deadline)
        elif name == "binary_data_output":
            binary = _flag(name, parameter)
        elif name == "approximation":
            approximation = _flag(name, parameter)
    return _Settings(strings, quality, deadline, binary, approximation)


def _string(name: str, parameter: InferParameter) -> str:
    if parameter.WhichOneof("parameter_choice") != "string_param":
        raise _wrong_kind(name, parameter, "string_param")
    value = parameter.string_param
    # A list of names may be longer than one name; its entries are looked up one by one.
    if name != "prohibited_variants" and len(value) > MAX_NAME:
        raise InvalidRequest(f"parameter {name!r} has {len(value)} characters; at most {MAX_NAME}")
    return value


def _number(name: str, parameter: InferParameter) -> float:
    kind = parameter.WhichOneof("parameter_choice")
    if kind not in ("int64_param", "uint64_param", "double_param"):
        raise _wrong_kind(name, parameter, "int64_param, uint64_param or double_param")
    value: float = getattr(parameter, kind)
    return value


def _flag(name: str, parameter: InferParameter) -> bool:
    if parameter.WhichOneof("parameter_choice") != "bool_param":
        raise _wrong_kind(name, parameter, "bool_param")
    return parameter.bool_param


def _wrong_kind(name: str, parameter: InferParameter, accepted: str) -> InvalidRequest:
    sent = parameter.WhichOneof("parameter_choice") or "no value"
    return InvalidRequest(f"parameter {name!r} has {sent}; accepted: {accepted}")


def split_names(names: str) -> tuple[str, ...]:
    """Names that a parameter separates by commas; more than a request may hold stay too many."""
    return tuple([name.strip() for name in names.split(",", LIMITS.names) if name.strip()])


def _read_wanted(
    request: ModelInferRequest, view: ModelView, settings: _Settings, *, typed: bool
) -> Wanted:
    """Requested outputs; the answer is `typed` as the input was when nothing says otherwise."""
    binary = settings.binary
    outputs: dict[str, int] | None = None
    if request.outputs:
        if len(request.outputs) > LIMITS.names:
            raise InvalidRequest(
                f"{len(request.outputs)} requested outputs; at most {LIMITS.names}"
            )
        outputs = {}
        for each in request.outputs:
            if each.name not in view.outputs:
                raise InvalidRequest(
                    f"model {shown(view.info.name)} has no output {shown(each.name)}; "
                    f"outputs: {listed(view.outputs)}"
                )
            if each.name in outputs:
                raise InvalidRequest(f"output {shown(each.name)} is requested twice")
            outputs[each.name] = 0
            if each.parameters:
                outputs[each.name], binary = _read_output(each.name, each.parameters, binary)
    if binary is not None:
        typed = not binary
    if outputs is None:
        return TYPED if typed else RAW
    return Wanted(outputs, typed)


def _read_output(
    output: str, parameters: Mapping[str, InferParameter], binary: bool | None
) -> tuple[int, bool | None]:
    if _SHARED_MEMORY in parameters:
        raise InvalidRequest(
            f"output {shown(output)} is asked for in shared memory; accepted: in the answer"
        )
    if "binary_data" in parameters:
        binary = _flag("binary_data", parameters["binary_data"])
    if "classification" not in parameters:
        return 0, binary
    classes = _number("classification", parameters["classification"])
    if not (classes >= 1 and classes == int(classes)):
        raise InvalidRequest(
            f"output {shown(output)} asks for {classes:g} classes; accepted: a whole number from 1"
        )
    return int(classes), binary
