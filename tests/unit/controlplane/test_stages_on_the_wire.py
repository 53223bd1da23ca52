"""How an answer of a cascade says how it came about, on both protocols."""

from __future__ import annotations

from controlplane.policy.records import Answer, Outcome, Provenance, Stages, TensorValue
from controlplane.rpc.oip_message import RAW, TYPED
from controlplane.rpc.oip_response import OipWriter
from controlplane.rpc.provenance import write_provenance
from protos.inference.oip_pb2 import ModelInferResponse, ModelStreamInferResponse

PLAIN = Provenance("m", "1", "best", "sha256:a", "escalated", False, 0.9, "w1")
STAGES = Stages("fast", 0.55, True, 2, 0.85)
COST = Outcome(1, 10, 14_000, 15_000, 0, 0, 0, 0, 0, 0, 1, 2)
OUTPUTS = (TensorValue("logits", "float32", (1, 2), b"\0" * 8),)


def written(provenance: Provenance) -> ModelInferResponse:
    return read(OipWriter().unary(Answer(OUTPUTS, provenance, COST), "q", RAW))


def read(response: ModelInferResponse | bytes) -> ModelInferResponse:
    return ModelInferResponse.FromString(response) if isinstance(response, bytes) else response


def test_the_native_provenance_has_the_stages_of_a_cascade_only() -> None:
    assert not write_provenance(PLAIN).HasField("stages")
    stages = write_provenance(PLAIN._replace(stages=STAGES)).stages
    assert (stages.first_variant, stages.escalated, stages.runs) == ("fast", True, 2)
    assert (stages.confidence, stages.expected_quality) == (0.55, 0.85)


def test_open_inference_answers_have_them_as_parameters() -> None:
    assert "first_variant" not in written(PLAIN).parameters
    told = written(PLAIN._replace(stages=STAGES)).parameters
    assert told["first_variant"].string_param == "fast"
    assert told["confidence"].double_param == 0.55
    assert told["escalated"].bool_param
    assert told["stages"].int64_param == 2
    assert told["expected_quality"].double_param == 0.85
    assert told["reason"].string_param == "escalated"


def test_one_writer_does_not_mix_up_answers_that_share_the_rest() -> None:
    writer = OipWriter()
    told = PLAIN._replace(stages=STAGES)
    for wanted in (RAW, TYPED):
        first = read(writer.unary(Answer(OUTPUTS, told, COST), "q", wanted))
        second = read(writer.unary(Answer(OUTPUTS, PLAIN, COST), "q", wanted))
        assert first.parameters["confidence"].double_param == 0.55
        assert "confidence" not in second.parameters
        assert first.outputs[0].name == second.outputs[0].name == "logits"


def test_streamed_answers_have_them_too() -> None:
    told = PLAIN._replace(stages=STAGES)
    message = OipWriter().streamed(Answer(OUTPUTS, told, COST), "q", RAW)
    assert isinstance(message, bytes)
    response = ModelStreamInferResponse.FromString(message).infer_response
    assert response.parameters["first_variant"].string_param == "fast"
    assert response.id == "q"
