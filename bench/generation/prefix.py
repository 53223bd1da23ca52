"""What a prompt's known beginning saves, and that it saves nothing to another tenant."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.generation.plan import prompt_ids
from deploy.channels import channel as channel_to
from protos.orchid.v1 import common_pb2, inference_pb2, inference_pb2_grpc


@dataclass(frozen=True, slots=True)
class PrefixSettings:
    """`repeats` prompts that share `shared` tokens and differ in the `own` after them."""

    shared: int = 512
    own: int = 32
    repeats: int = 7


@dataclass(frozen=True, slots=True)
class _FirstToken:
    milliseconds: float
    cached_tokens: int


def measure_prefix(
    target: str, model: str, vocabulary: int, settings: PrefixSettings
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Times first tokens through the front door, one call after the other.

    Each repeat asks with a new prefix (cold), with it again and another ending (shared), and
    for another tenant (other). Returns the points, and `prefix_ttft_ratio` (shared over cold),
    `prefix_other_tenant_ratio` (other over cold), medians of pairs, with the most tokens that each
    found in the cache. Raises grpc.RpcError.
    """
    times: dict[str, list[_FirstToken]] = {"cold": [], "shared": [], "other": []}
    with channel_to(target) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        endings = iter(range(1, 1 << 20))
        # The first call is slower for reasons of its own.
        _first_token(stub, model, "warm", prompt_ids(0, 0, settings.shared, vocabulary))
        for repeat in range(settings.repeats):
            prefix = prompt_ids(1, repeat, settings.shared, vocabulary)
            for kind, tenant in (("cold", "one"), ("shared", "one"), ("other", "two")):
                prompt = prefix + _own(endings, settings, vocabulary)
                times[kind].append(_first_token(stub, model, tenant, prompt))
    points = [
        {
            "prefix": kind,
            "first_token_ms": [one.milliseconds for one in found],
            "cached_tokens": [one.cached_tokens for one in found],
        }
        for kind, found in times.items()
    ]
    return points, {
        "prefix_ttft_ratio": _ratio(times["shared"], times["cold"]),
        "prefix_other_tenant_ratio": _ratio(times["other"], times["cold"]),
        "prefix_cached_tokens": float(max(one.cached_tokens for one in times["shared"])),
        "prefix_other_tenant_cached_tokens": float(
            max(one.cached_tokens for one in times["other"])
        ),
    }


def _own(endings: Iterator[int], settings: PrefixSettings, vocabulary: int) -> list[int]:
    return prompt_ids(2, next(endings), settings.own, vocabulary)


def _first_token(
    stub: inference_pb2_grpc.InferenceStub, model: str, tenant: str, prompt: list[int]
) -> _FirstToken:
    request = inference_pb2.GenerateRequest(
        model=model,
        tokens=inference_pb2.PromptTokens(ids=prompt),
        limits=common_pb2.GenerationLimits(max_tokens=1, ignore_end=True),
        request_class=inference_pb2.RequestClass(tenant=tenant),
        first_token_target_ms=60_000,
    )
    cached = 0
    began = time.perf_counter()
    seconds = 0.0
    for event in stub.Generate(request):
        if event.HasField("admitted"):
            cached = event.admitted.admitted.cached_tokens
        elif event.HasField("delta") and event.delta.token_ids and not seconds:
            seconds = time.perf_counter() - began
    return _FirstToken(seconds * 1e3, cached)


def _ratio(over: list[_FirstToken], under: list[_FirstToken]) -> float:
    pairs = zip(over, under, strict=True)
    return median(a.milliseconds / b.milliseconds for a, b in pairs)
