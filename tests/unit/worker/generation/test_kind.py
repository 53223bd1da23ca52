"""Loading decoders: which variant, how much memory, and what is told when it cannot be."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from worker.engine import RunToken, Session
from worker.errors import ModelLoadError
from worker.generation.kind import (
    DecodeKind,
    DecodeParts,
    DecodeSettings,
    LoadedDecoder,
    OnEngine,
)
from worker.generation.loop import DecodeLoop
from worker.generation.warmup import DecodeWarmup
from worker.host import ModelHost
from worker.loop import Clocks
from worker.memory import MemoryRoom
from worker.models.importer import ImportOptions, import_model
from worker.models.progress import Silent
from worker.models.synthetic import build_synthetic
from worker.models.synthetic_generator import build_tiny_generator, write_tiny_export
from worker.refusals import InsufficientMemory
from worker.scheduling.cost import StepCost
from worker.scheduling.policies import SLO
from worker.stock_decode import StockDecodeEngine
from worker.warm_profiles import HostProfiles

TOKEN_BYTES = 2 * 2 * 2 * 16 * 2


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("repository")
    build_tiny_generator(repository, "chat", precisions=("fp32", "int8", "q4"))
    build_tiny_generator(repository, "plain")
    build_synthetic(repository, "tiny")
    source = write_tiny_export(tmp_path_factory.mktemp("export"))
    import_model(source, repository, ImportOptions(name="stock"), Silent())
    return repository


class Bench:
    """A host of decoders with a loop that runs."""

    def __init__(
        self,
        repository: Path,
        *,
        variants: tuple[str, ...] = (),
        arena_bytes: int = 0,
        room: int = 1 << 40,
        kept: Path | None = None,
    ) -> None:
        self.room = room
        self.loop = DecodeLoop(
            clocks=Clocks(time.monotonic_ns, time.thread_time_ns),
            make_token=RunToken,
            wake=lambda deliver: None,
        )
        on_engine = OnEngine(self.loop)
        self.kind = DecodeKind(
            DecodeSettings(variants, arena_bytes, half=True, max_waiting=8, policy=SLO),
            DecodeParts(
                loop=self.loop,
                open_session=lambda graph: Session(graph, share_weights=False),
                on_engine=on_engine,
                warmup=DecodeWarmup(on_engine, time.monotonic_ns, 1, time.thread_time_ns),
                kept=HostProfiles(kept or repository / "kept", "test", time.sleep, StepCost),
                draw_seed=lambda: 1,
            ),
        )
        self.host = ModelHost(
            repository,
            kind=self.kind,
            memory=lambda: MemoryRoom(self.room, "control group test"),
            on_change=lambda: None,
        )
        self.loop.start()

    def arena_tokens(self, model: str) -> int:
        (variant,) = self.host.describe([model])[0].variants
        assert variant.decode is not None
        return variant.decode.arena_tokens


MakeBench = Callable[..., Bench]


@pytest.fixture
def bench(built: Path) -> Iterator[MakeBench]:
    made: list[Bench] = []

    def make(**changes: object) -> Bench:
        made.append(Bench(built, **changes))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.loop.stop()


def test_the_fastest_of_the_allowed_variants_is_held(bench: MakeBench) -> None:
    assert [v.variant.name for v in bench().host.load("chat").variants] == ["chat-q4"]
    some = bench(variants=("chat-fp32", "chat-int8", "plain-fp32"))
    assert [v.variant.name for v in some.host.load("chat").variants] == ["chat-int8"]
    assert [v.variant.name for v in some.host.load("plain").variants] == ["plain-fp32"]
    with pytest.raises(ModelLoadError, match="has plain-fp32; the configuration allows other"):
        bench(variants=("other",)).host.load("plain")


def test_a_second_variant_of_a_model_is_refused(bench: MakeBench) -> None:
    host = bench().host
    with pytest.raises(ModelLoadError, match="one variant of a model, chat-q4, chat-fp32 was"):
        host.load("chat", ["chat-q4", "chat-fp32"])
    host.load("chat", ["chat-fp32"])
    with pytest.raises(ModelLoadError, match="chat-fp32 is loaded, unload the model first"):
        host.load("chat", ["chat-q4"])
    assert host.any_variant("chat") == "chat-fp32"
    host.unload("chat")
    assert [v.variant.name for v in host.load("chat", ["chat-q4"]).variants] == ["chat-q4"]


def test_each_class_of_worker_skips_the_others_models(bench: MakeBench) -> None:
    host = bench().host
    assert [name for name in host.available_models() if host.serves(name)] == [
        "chat",
        "plain",
        "stock",
    ]
    with pytest.raises(ModelLoadError, match="model 'tiny' does not generate text"):
        host.load("tiny")


def test_the_arena_is_as_large_as_told_or_as_there_is_room_for(bench: MakeBench) -> None:
    told = bench(arena_bytes=1 << 20)
    told.host.load("plain")
    assert told.arena_tokens("plain") == (1 << 20) // (16 * TOKEN_BYTES) * 16
    roomy = bench()
    roomy.host.load("plain")
    # 64 sequences of the context of 512 are as much as is of use.
    assert roomy.arena_tokens("plain") == 64 * 512
    weights = roomy.host.describe()[0].variants[0].resident_bytes
    tight = bench(room=weights + 512 * TOKEN_BYTES)
    tight.host.load("plain")
    assert tight.arena_tokens("plain") == 512


def test_an_arena_that_does_not_fit_is_refused_with_the_numbers(bench: MakeBench) -> None:
    large = bench(arena_bytes=64 << 20, room=32 << 20)
    with pytest.raises(
        InsufficientMemory,
        match=rf"needs \d+ bytes for its weights and {64 << 20} for keys .*{32 << 20} bytes are",
    ):
        large.host.load("plain")


def test_what_was_measured_is_kept_for_the_next_start(bench: MakeBench, tmp_path: Path) -> None:
    first = bench(kept=tmp_path)
    first.host.load("plain")
    (file,) = tmp_path.glob("*.json")
    kept = file.read_text()
    assert "prefill_us_per_token" in kept
    first.host.warm("plain")
    (variant,) = first.host.describe()[0].variants
    assert variant.decode is not None and variant.decode.cost is not None
    assert str(variant.decode.cost.step_us) in file.read_text()


def test_loads_end_when_the_worker_stops(bench: MakeBench) -> None:
    stopping = bench()
    stopping.loop.stop()
    with pytest.raises(Exception, match="the worker is stopping"):
        stopping.host.load("plain")


def test_a_stock_graph_gets_an_arena_of_float32_and_room_for_its_copies(bench: MakeBench) -> None:
    tight = bench(arena_bytes=1 << 20)
    tight.host.load("stock")
    # Float32 in the arena, and once more in what goes into a run and in what comes out.
    token_bytes = 3 * (2 * 2 * 2 * 16 * 4)
    assert tight.arena_tokens("stock") == (1 << 20) // (16 * token_bytes) * 16
    loaded = tight.host.admit("stock", "stock")
    assert isinstance(loaded, LoadedDecoder)
    assert isinstance(loaded.engine, StockDecodeEngine)
    assert loaded.engine.arena.stats().bytes == tight.arena_tokens("stock") * token_bytes // 3
    assert loaded.decode is not None and loaded.decode.token_bytes == token_bytes
    assert loaded.decode.cost is not None
