"""The parts of a control plane that read what callers send, before models that nobody serves."""

from __future__ import annotations

import asyncio
import itertools
from functools import cache
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers

from controlplane.config import ControlPlaneConfig
from controlplane.deployed import (
    GenerationSettings,
    ModelInfo,
    ModelState,
    TensorSpec,
    TokenizerInfo,
    VariantInfo,
)
from controlplane.policy.profiles import VariantProfile
from controlplane.policy.records import Answer, Request
from controlplane.preprocess import Preprocessor
from controlplane.registry import Registry, WorkerIdentity
from controlplane.rpc.catalogue import Catalogue
from controlplane.rpc.intake import Intake
from controlplane.rpc.oip_message import MessageReader
from controlplane.rpc.statistics import Statistics

_WORDS = ("[UNK]", "[CLS]", "[SEP]", "good", "bad", "film", "plot", "<user>")
_PROFILE = VariantProfile(s0_ns=1e5, s1_ns=1e3, p50_ns=1e5)
ECHO_TYPES = (
    *("bool", "uint8", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "string"),
)
CONTEXT = 64


def tokenizer_document() -> bytes:
    """A word tokenizer."""
    vocabulary = {word: index for index, word in enumerate(_WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    document: str = tokenizer.to_str()
    return document.encode()


def _text_model(name: str, task: str) -> ModelInfo:
    variants = tuple(
        VariantInfo(
            name=f"{name}-{each}",
            layout="ragged",
            precision="fp32",
            tokenizer="words",
            inputs=(TensorSpec("input_ids", "int64", (-1,)),),
            outputs=(TensorSpec("logits", "float32", (-1, 2)),),
            profile=_PROFILE,
            max_tokens=CONTEXT,
            ready=True,
        )
        for each in "ab"
    )
    return ModelInfo(
        name=name,
        version="3",
        task=task,
        labels=("negative", "positive"),
        manifest_digest="sha256:0123",
        default_tokenizer="words",
        primary_output="logits",
        tokenizers=(TokenizerInfo("words", "abc"),),
        variants=variants,
        state=ModelState.READY,
    )


def _tensor_model(
    name: str, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
) -> ModelInfo:
    variant = VariantInfo(
        name=f"{name}-only",
        layout="tensor",
        precision="fp32",
        tokenizer="",
        inputs=inputs,
        outputs=outputs,
        profile=_PROFILE,
        ready=True,
    )
    return ModelInfo(
        name=name,
        version="1",
        task="tensor",
        labels=(),
        manifest_digest="sha256:0123",
        default_tokenizer="",
        primary_output=outputs[0].name,
        tokenizers=(),
        variants=(variant,),
        state=ModelState.READY,
    )


def writer() -> ModelInfo:
    """A model that generates text."""
    variant = VariantInfo(
        name="writer-q4",
        layout="paged",
        precision="q4",
        tokenizer="words",
        inputs=(),
        outputs=(),
        max_tokens=CONTEXT,
        ready=True,
    )
    return ModelInfo(
        name="writer",
        version="1",
        task="text-generation",
        labels=(),
        manifest_digest="sha256:0123",
        default_tokenizer="words",
        primary_output="",
        tokenizers=(TokenizerInfo("words", "abc"),),
        variants=(variant,),
        state=ModelState.READY,
        generation=GenerationSettings(
            chat_template="{% for m in messages %}{{ m['content'] }} {% endfor %}",
            end_tokens=(2,),
            begin_token=None,
            vocabulary=len(_WORDS),
            context=CONTEXT,
        ),
    )


class _Nobody:
    """A queue that takes every request and answers none."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)

    def now_ns(self) -> int:
        return 1

    def next_id(self) -> int:
        return next(self._ids)

    def submit(self, request: Request) -> asyncio.Future[Answer]:
        raise NotImplementedError

    def attend(self, request: Request, waiter: object) -> None:
        raise NotImplementedError

    def cancel(self, request: Request) -> None:
        raise NotImplementedError


class House:
    """What every target of a process shares."""

    def __init__(self) -> None:
        self.config = ControlPlaneConfig()
        registry = Registry()
        session = registry.join(WorkerIdentity("w1", "127.0.0.1:1", 1, "cpu", "avx2"), 0)
        echoed = tuple(TensorSpec(kind, kind, (-1, 2)) for kind in ECHO_TYPES)
        pair = (TensorSpec("a", "float32", (-1, 3)), TensorSpec("b", "float32", (-1, 3)))
        served = [
            _text_model("tiny", "text-classification"),
            _text_model("vectors", "embedding"),
            _tensor_model("adder", pair, (TensorSpec("sum", "float32", (-1, 3)),)),
            _tensor_model("echo", echoed, echoed),
        ]
        registry.report_models(session, served)
        decoder = WorkerIdentity("d1", "127.0.0.1:2", 1, "cpu", "avx2", decodes=True)
        registry.report_models(registry.join(decoder, 0), [writer()])
        registry.add_tokenizer("abc", tokenizer_document())
        queue: Any = _Nobody()
        preprocessor = Preprocessor(registry, threads=1, max_queued=1, now_ns=queue.now_ns)
        self.catalogue = Catalogue(registry, Statistics(lambda: 0))
        self.intake = Intake(self.config, queue, preprocessor)
        self.reader = MessageReader()


@cache
def house() -> House:
    """The one of this process."""
    return House()
