"""`orchid generate` and `orchid chat` against a server that answers by script."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field

import grpc
import pytest
from typer.testing import CliRunner, Result

from deploy.cli import app
from deploy.cli.generate import explained
from deploy.generation import GenerationError
from protos.orchid.v1 import common_pb2, inference_pb2, inference_pb2_grpc

RUNNER = CliRunner(env={"COLUMNS": "300"})

Answer = Callable[
    [inference_pb2.GenerateRequest, grpc.ServicerContext],
    Iterator[inference_pb2.GenerateResponse],
]


def answer(
    request: inference_pb2.GenerateRequest, context: grpc.ServicerContext
) -> Iterator[inference_pb2.GenerateResponse]:
    """Two pieces of text and the end."""
    for text in ("once upon", " a tïme"):
        delta = common_pb2.GenerationDelta(text=text, token_ids=[1])
        yield inference_pb2.GenerateResponse(delta=delta)
    finished = common_pb2.GenerationFinished(
        reason=common_pb2.FINISH_REASON_LENGTH, generated_tokens=3
    )
    yield inference_pb2.GenerateResponse(finished=finished)
    usage = common_pb2.GenerationUsage(
        prompt_tokens=5,
        cached_tokens=2,
        generated_tokens=3,
        first_token_us=100_000,
        total_us=300_000,
    )
    provenance = inference_pb2.Provenance(
        model="m", variant="m-q4", worker_id="d1", reason="best-in-target"
    )
    completed = inference_pb2.GenerateCompleted(usage=usage, provenance=provenance)
    yield inference_pb2.GenerateResponse(completed=completed)


@dataclass
class Server(inference_pb2_grpc.InferenceServicer):
    """Keeps what it was asked."""

    script: Answer = answer
    asked: list[inference_pb2.GenerateRequest] = field(default_factory=list)
    address: str = ""

    def Infer(
        self, request: inference_pb2.InferRequest, context: grpc.ServicerContext
    ) -> inference_pb2.InferResponse:
        raise NotImplementedError

    def StreamInfer(
        self,
        request_iterator: Iterator[inference_pb2.InferRequest],
        context: grpc.ServicerContext,
    ) -> Iterator[inference_pb2.InferStreamResponse]:
        raise NotImplementedError

    def Generate(
        self, request: inference_pb2.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[inference_pb2.GenerateResponse]:
        self.asked.append(request)
        return self.script(request, context)

    def run(self, *arguments: str, given: str | None = None) -> Result:
        result = RUNNER.invoke(app, [*arguments, "--address", self.address], input=given)
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result


@pytest.fixture
def server() -> Iterator[Server]:
    servicer = Server()
    grpc_server = grpc.server(futures.ThreadPoolExecutor(2))
    inference_pb2_grpc.add_InferenceServicer_to_server(servicer, grpc_server)
    servicer.address = f"127.0.0.1:{grpc_server.add_insecure_port('127.0.0.1:0')}"
    grpc_server.start()
    yield servicer
    grpc_server.stop(None).wait()


def refusing(
    code: grpc.StatusCode, details: str, *trailers: tuple[str, str], longest: int = 0
) -> Answer:
    """Refuses conversations of more than `longest` turns."""

    def refuse(
        request: inference_pb2.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[inference_pb2.GenerateResponse]:
        if len(request.chat.messages) > longest or not longest:
            context.set_trailing_metadata(trailers)
            context.abort(code, details)
        return answer(request, context)

    return refuse


def test_the_answer_is_on_stdout_and_what_it_took_on_stderr(server: Server) -> None:
    result = server.run("generate", "m", "Once")
    assert result.exit_code == 0
    assert result.stdout == "once upon a tïme\n"
    assert result.stderr == (
        "m-q4 on d1 (best-in-target): 5 (2 cached) + 3 tokens, "
        "first after 100 ms, then 10.0 a second; ended by length\n"
    )
    (request,) = server.asked
    assert (request.text, request.limits.max_tokens) == ("Once", 256)
    assert not request.sampling.HasField("seed")


def test_every_option_reaches_the_request(server: Server) -> None:
    options = [
        "--system",
        "Brief.",
        "--max-tokens",
        "9",
        "--temperature",
        "0.5",
        "--top-p",
        "0.9",
        "--top-k",
        "4",
        "--min-p",
        "0.1",
        "--repetition-penalty",
        "1.1",
        "--seed",
        "0",
        "--stop",
        "ab",
        "--stop",
        "cd",
        "--deadline-ms",
        "900",
        "--first-token-target-ms",
        "80",
        "--token-target-ms",
        "20",
        "--class",
        "quick",
        "--tenant",
        "t",
        "--variant",
        "m-q4",
        "--prohibit",
        "m-fp32",
        "--minimum-quality",
        "0.5",
    ]
    assert server.run("generate", "m", "-", *options, given="A long\nstory").exit_code == 0
    (request,) = server.asked
    told = [(m.role, m.content) for m in request.chat.messages]
    assert told == [("system", "Brief."), ("user", "A long\nstory")]
    assert request.sampling == common_pb2.Sampling(
        temperature=0.5, top_k=4, top_p=0.9, min_p=0.1, repetition_penalty=1.1, seed=0
    )
    assert request.limits == common_pb2.GenerationLimits(max_tokens=9, stop=["ab", "cd"])
    assert request.request_class == inference_pb2.RequestClass(
        tenant="t",
        request_class="quick",
        minimum_quality=0.5,
        variant="m-q4",
        prohibited_variants=["m-fp32"],
    )
    times = (request.deadline_ms, request.first_token_target_ms, request.token_target_ms)
    assert times == (900, 80, 20)


def test_json_is_one_document(server: Server) -> None:
    result = server.run("generate", "m", "Once", "--chat", "--json")
    document = json.loads(result.stdout)
    assert (document["text"], document["finish"]) == ("once upon a tïme", "length")
    assert document["provenance"]["variant"] == "m-q4"
    assert document["usage"]["generated_tokens"] == 3
    assert result.stderr == ""


def test_a_refusal_says_when_to_come_back(server: Server) -> None:
    server.script = refusing(
        grpc.StatusCode.RESOURCE_EXHAUSTED, "not now", ("retry-after-ms", "70")
    )
    result = server.run("generate", "m", "Once")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "RESOURCE_EXHAUSTED: not now" in result.stderr
    assert "try again in 70 ms" in result.stderr


def test_without_a_server_the_remedy_is_to_start_one() -> None:
    error = GenerationError("UNAVAILABLE", "failed to connect to all addresses")
    assert explained(error, "h:1")[1] == "orchid up starts a cluster"
    result = RUNNER.invoke(app, ["generate", "m", "x", "--address", "127.0.0.1:1"])
    assert result.exit_code == 1 and "orchid up starts a cluster" in result.stderr
    assert "nothing serves on 127.0.0.1:1" in result.stderr


def test_a_prompt_that_is_not_utf8(server: Server) -> None:
    result = server.run("generate", "m", "\udcff")
    assert result.exit_code == 2 and "prompt is not UTF-8" in result.stderr
    assert server.asked == []


def test_a_chat_keeps_its_turns_until_they_are_cleared(server: Server) -> None:
    result = server.run(
        "chat", "m", "--system", "Brief.", "--seed", "3",
        given="Hello\n\nAnd then?\n/clear\n/what\nAgain\n/exit\nnever\n",
    )  # fmt: skip
    assert result.exit_code == 0
    assert result.stdout == "once upon a tïme\n" * 3
    said = [[m.content for m in request.chat.messages] for request in server.asked]
    assert said == [
        ["Brief.", "Hello"],
        ["Brief.", "Hello", "once upon a tïme", "And then?"],
        ["Brief.", "Again"],
    ]
    assert {r.sampling.seed for r in server.asked} == {3}
    assert "forgotten" in result.stderr and "no command /what" in result.stderr


def test_a_chat_that_outgrows_the_context_drops_its_oldest_turn_and_says_so(
    server: Server,
) -> None:
    server.script = refusing(
        grpc.StatusCode.INVALID_ARGUMENT,
        "too long",
        ("orchid-reason", "context-overflow"),
        longest=4,
    )
    result = server.run("chat", "m", "--system", "s", given="one\ntwo\nthree\n")
    assert result.exit_code == 0
    last = [m.content for m in server.asked[-1].chat.messages]
    assert last == ["s", "two", "once upon a tïme", "three"]
    assert result.stderr.count("its oldest turn was dropped") == 1


def test_a_single_turn_that_is_too_long_ends_a_chat_without_a_terminal(server: Server) -> None:
    server.script = refusing(
        grpc.StatusCode.INVALID_ARGUMENT, "too long", ("orchid-reason", "context-overflow")
    )
    result = server.run("chat", "m", given="one\ntwo\n")
    assert result.exit_code == 1 and "INVALID_ARGUMENT: too long" in result.stderr
    assert len(server.asked) == 1


def test_ctrl_c_stops_an_answer_and_the_chat_goes_on(server: Server) -> None:
    ended: list[bool] = []

    def interrupted(
        request: inference_pb2.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[inference_pb2.GenerateResponse]:
        context.add_callback(lambda: ended.append(True))
        yield from answer(request, context)

    server.script = interrupted
    spoken: list[str] = []

    def say(text: str) -> None:
        spoken.append(text)
        if len(spoken) == 1:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["deploy.cli.chat"], "say", say)
        result = server.run("chat", "m", given="one\ntwo\n")
    assert result.exit_code == 0 and "stopped" in result.stderr
    said = [m.content for m in server.asked[1].chat.messages]
    assert said == ["one", "once upon", "two"]
    assert ended
