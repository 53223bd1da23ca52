"""The model host over real synthetic models, with its engine calls made inline or held."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnx
import pytest

from tests.unit.worker.models.gguf_files import (
    metadata_of,
    tensors_of,
    tiny_gguf_decoder,
    write_gguf,
)
from worker.encoder_kind import EncoderKind
from worker.engine import MemoryStats, RunToken, Session
from worker.errors import InvalidInput, ModelLoadError
from worker.host import ModelHost
from worker.hosted import ModelState, variant_files, vocabulary_size
from worker.jobs import Token
from worker.ledger import MemoryLedger, Sources
from worker.memory import MemoryRoom
from worker.models.generator import build_local
from worker.models.manifest import MANIFEST_NAME, describe_file, load_manifest, save_manifest
from worker.models.progress import Silent
from worker.models.synthetic import (
    build_padded,
    build_synthetic,
    build_tensor_model,
    reference_logits,
    tiny_tokenizer,
    tiny_weights,
    vocabulary,
)
from worker.process_memory import Heap, ProcessMemory
from worker.profile_file import ProfileOf, no_profile
from worker.records import Item
from worker.refusals import InsufficientMemory, NotFound, Unavailable
from worker.warmup import Warmup

T = TypeVar("T")
PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("repository")
    build_synthetic(repository)
    build_padded(repository)
    build_tensor_model(repository)
    return repository


class Bench:
    """A host whose engine calls can be stopped before they begin."""

    def __init__(
        self,
        repository: Path,
        *variants: str,
        room: int = 1 << 40,
        profile_of: ProfileOf = no_profile,
    ) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.at_gate = threading.Event()
        self.changes = 0
        self.released: list[Callable[[], None]] = []
        self.room = room
        self.release: Callable[[Callable[[], None]], None] = lambda function: function()
        self.kind = EncoderKind(
            variants=variants,
            open_session=Session,
            warmup=Warmup(self._on_engine, RunToken, time.monotonic_ns, 1, time.thread_time_ns),
            release=self._release,
            profile_of=profile_of,
        )
        self.host = ModelHost(
            repository,
            kind=self.kind,
            memory=lambda: MemoryRoom(self.room, "control group test"),
            on_change=self._changed,
        )

    def _on_engine(self, function: Callable[[], T]) -> T:
        self.at_gate.set()
        assert self.gate.wait(PATIENCE_S)
        return function()

    def _release(self, function: Callable[[], None]) -> None:
        self.released.append(function)
        self.release(function)

    def _changed(self) -> None:
        self.changes += 1

    def run(self, model: str, variant: str, *items: Item) -> list[object]:
        token: Token = RunToken()
        return list(self.host.run(model, variant, items, token).outcomes)


def words(text: str, item_id: int = 1) -> Item:
    ids = np.array(tiny_tokenizer().encode(text).ids, np.int32)
    return Item(item_id, 0, token_ids=ids, lengths=(len(ids),))


def logits(outcome: object) -> np.ndarray:
    assert isinstance(outcome, dict)
    return np.asarray(outcome["logits"])


def test_the_repository_is_what_holds_a_manifest(built: Path) -> None:
    assert Bench(built).host.available_models() == ("adder", "tiny", "tiny-padded")
    assert Bench(built / "nowhere").host.available_models() == ()


def test_a_loaded_model_is_ready_profiled_and_right(built: Path) -> None:
    bench = Bench(built)
    snapshot = bench.host.load("tiny")
    assert snapshot.state is ModelState.READY and snapshot.progress == 1.0
    assert [v.variant.name for v in snapshot.variants] == ["tiny-a", "tiny-b"]
    for variant in snapshot.variants:
        assert variant.ready and variant.resident_bytes > 0
        assert variant.profile is not None and variant.profile.p50_us > 0
        assert variant.profile.reference_tokens == 32
    bench.host.admit("tiny", "tiny-a")
    item = words("a great film with a dull ending")
    (outcome,) = bench.run("tiny", "tiny-a", item)
    weights = tiny_weights(seed=1, layers=4, max_tokens=512)
    expected = reference_logits(weights, [int(i) for i in item.token_ids])
    assert np.allclose(logits(outcome), [expected], atol=1e-4)


def test_the_padded_graph_answers_as_the_ragged_one(built: Path) -> None:
    bench = Bench(built)
    bench.host.load("tiny", ["tiny-a"])
    bench.host.load("tiny-padded")
    items = [words(text) for text in ("good", "a bad and slow movie", "the plot is great fun")]
    ragged = bench.run("tiny", "tiny-a", *items)
    padded = bench.run("tiny-padded", "tiny-a", *items)
    for left, right in zip(ragged, padded, strict=True):
        assert np.allclose(logits(left), logits(right), atol=1e-5)


def test_a_tensor_model_runs_its_named_tensors(built: Path) -> None:
    bench = Bench(built)
    snapshot = bench.host.load("adder")
    assert snapshot.variants[0].profile is not None
    item = Item(1, 0, tensors={k: np.arange(3, dtype=np.float32) for k in "ab"})
    (outcome,) = bench.run("adder", "adder", item)
    assert isinstance(outcome, dict) and np.array_equal(outcome["sum"], [0, 2, 4])


def test_only_allowed_or_named_variants_are_loaded(built: Path) -> None:
    bench = Bench(built, "tiny-b")
    assert [v.variant.name for v in bench.host.load("tiny").variants] == ["tiny-b"]
    both = bench.host.load("tiny", ["tiny-a"])
    assert [v.variant.name for v in both.variants] == ["tiny-a", "tiny-b"]
    with pytest.raises(NotFound, match="allows tiny-b"):
        bench.host.load("adder")


def test_unknown_names_are_answered_with_the_known_ones(built: Path) -> None:
    bench = Bench(built)
    with pytest.raises(NotFound, match=r"unknown model 'huge'.*adder, tiny, tiny-padded"):
        bench.host.load("huge")
    with pytest.raises(NotFound, match=r"unknown variant 'x' of model 'tiny'.*tiny-a, tiny-b"):
        bench.host.load("tiny", ["x"])
    with pytest.raises(NotFound, match="'tiny' is not loaded"):
        bench.host.admit("tiny", "tiny-a")
    bench.host.load("tiny", ["tiny-a"])
    with pytest.raises(NotFound, match=r"no variant 'tiny-z' here; it has tiny-a"):
        bench.host.admit("tiny", "tiny-z")
    for call in (bench.host.unload, bench.host.warm):
        with pytest.raises(NotFound, match="'adder' is not loaded; loaded are tiny"):
            call("adder")


def test_a_model_serves_while_another_loads(built: Path) -> None:
    bench = Bench(built)
    bench.host.load("tiny", ["tiny-a"])
    bench.gate.clear()
    bench.at_gate.clear()
    loading = threading.Thread(target=bench.host.load, args=("tiny-padded",))
    loading.start()
    assert bench.at_gate.wait(PATIENCE_S)
    ready, warming = bench.host.describe(["tiny", "tiny-padded"])
    assert ready.state is ModelState.READY
    assert warming.state is ModelState.WARMING and 0 < warming.progress < 1
    assert isinstance(bench.run("tiny", "tiny-a", words("good"))[0], dict)
    with pytest.raises(Unavailable, match=r"'tiny-a' of model 'tiny-padded'.*warming, \d+% done"):
        bench.host.admit("tiny-padded", "tiny-a")
    bench.gate.set()
    loading.join(PATIENCE_S)
    assert bench.host.describe(["tiny-padded"])[0].state is ModelState.READY
    bench.host.admit("tiny-padded", "tiny-a")


def test_unloading_refuses_new_work_but_runs_what_was_accepted(built: Path) -> None:
    bench = Bench(built)
    bench.host.load("tiny", ["tiny-a"])
    seen: list[object] = []

    def late_work(function: Callable[[], None]) -> None:
        with pytest.raises(Unavailable, match="unloading"):
            bench.host.admit("tiny", "tiny-a")
        seen.extend(bench.run("tiny", "tiny-a", words("good")))
        function()

    bench.release = late_work
    bench.host.unload("tiny")
    assert isinstance(seen[0], dict)
    assert bench.host.describe() == ()
    with pytest.raises(NotFound):
        bench.host.admit("tiny", "tiny-a")
    with pytest.raises(NotFound):
        bench.run("tiny", "tiny-a", words("good"))
    assert bench.host.load("tiny", ["tiny-a"]).state is ModelState.READY


def test_a_load_that_cannot_fit_is_refused_with_the_numbers(built: Path) -> None:
    bench = Bench(built, room=1000)
    with pytest.raises(InsufficientMemory, match=r"needs \d+ bytes.*1000 bytes.*group test"):
        bench.host.load("tiny")
    (snapshot,) = bench.host.describe()
    assert snapshot.state is ModelState.FAILED and "1000 bytes" in snapshot.failure
    bench.room = 1 << 40
    assert bench.host.load("tiny").state is ModelState.READY


def test_the_refusal_of_a_load_shows_what_memory_is_for(built: Path) -> None:
    bench = Bench(built, room=1000)
    sources = Sources(
        process=lambda: ProcessMemory(7 << 20, 5 << 20, 2 << 20),
        heap=Heap,
        weights=dict,
        engine=lambda: MemoryStats(0, 0, 0),
        trim=lambda: None,
        room=lambda: MemoryRoom(1000, "control group test"),
    )
    host = ModelHost(
        built,
        kind=bench.kind,
        memory=lambda: MemoryRoom(bench.room, "control group test"),
        on_change=lambda: None,
        ledger=MemoryLedger(sources),
    )
    with pytest.raises(InsufficientMemory, match=r"held now, in MiB:\n  runtime +7.0\n"):
        host.load("tiny")
    bench.room = 1 << 40
    assert host.load("tiny").state is ModelState.READY
    host.unload("tiny")


def flip_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_one_broken_variant_does_not_keep_the_others(built: Path, tmp_path: Path) -> None:
    shutil.copytree(built / "tiny", tmp_path / "tiny")
    graph = tmp_path / "tiny" / "tiny-a.onnx"
    graph.write_bytes(b"\0" * graph.stat().st_size)
    bench = Bench(tmp_path)
    with pytest.raises(ModelLoadError, match=r"tiny-a\.onnx"):
        bench.host.load("tiny")
    (snapshot,) = bench.host.describe()
    assert [v.ready for v in snapshot.variants] == [False, True]
    assert snapshot.state is ModelState.READY and "tiny-a.onnx" in snapshot.failure


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda folder: (folder / "tiny-a.onnx").write_bytes(b"short"), "got 5 bytes"),
        (lambda folder: flip_a_byte(folder / "tiny-a.onnx"), "expected sha256 [0-9a-f]{64}, got"),
        (lambda folder: (folder / "tiny-a.onnx").unlink(), "no such file"),
        (lambda folder: (folder / "manifest.json").write_text("{}"), "manifest"),
        (lambda folder: (folder / "tokenizers" / "words.json").write_text("x"), "tokenizer"),
        (lambda folder: folder.rename(folder.parent / "other"), "called 'other'"),
    ],
)
def test_a_spoiled_model_says_what_is_wrong(
    built: Path, tmp_path: Path, spoil: Callable[[Path], object], text: str
) -> None:
    shutil.copytree(built / "tiny", tmp_path / "tiny")
    spoil(tmp_path / "tiny")
    (name,) = [folder.name for folder in tmp_path.iterdir()]
    with pytest.raises(ModelLoadError, match=text):
        Bench(tmp_path).host.load(name, ["tiny-a"])


def test_warm_measures_again_and_changes_are_told(built: Path) -> None:
    bench = Bench(built)
    before = bench.host.load("tiny").variants[0].profile
    told = bench.changes
    snapshot = bench.host.warm("tiny")
    assert bench.changes > told and snapshot.state is ModelState.READY
    assert snapshot.variants[0].profile is not before


def test_limits_of_the_variant_hold(built: Path) -> None:
    bench = Bench(built)
    bench.host.load("tiny", ["tiny-b"])
    too_long = Item(1, 0, token_ids=np.zeros(513, np.int32), lengths=(513,))
    unknown = Item(2, 0, token_ids=np.array([len(vocabulary())], np.int32), lengths=(1,))
    fine = words("good")
    long, strange, good = bench.run("tiny", "tiny-b", too_long, unknown, fine)
    assert isinstance(long, InvalidInput) and "512" in str(long)
    assert isinstance(strange, InvalidInput) and str(len(vocabulary()) - 1) in str(strange)
    assert isinstance(good, dict)


def test_files_of_a_variant_are_its_graph_and_the_weights_it_names(tmp_path: Path) -> None:
    build_synthetic(tmp_path)
    folder = tmp_path / "tiny"
    manifest = load_manifest(folder)
    first, second = manifest.variants
    assert list(variant_files(folder, manifest, first)) == ["tiny-a.onnx"]
    assert list(variant_files(folder, manifest, second)) == ["tiny-b.onnx"]
    assert vocabulary_size(folder, manifest, first) == len(vocabulary())


@pytest.fixture(autouse=True)
def _no_stray_threads() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() <= before


def test_a_model_that_cannot_be_read_is_remembered_until_it_can(tmp_path: Path) -> None:
    build_tensor_model(tmp_path)
    manifest = tmp_path / "adder" / MANIFEST_NAME
    whole = manifest.read_text()
    manifest.write_text("{")
    bench = Bench(tmp_path)
    with pytest.raises(ModelLoadError):
        bench.host.load("adder")
    with pytest.raises(NotFound):
        bench.host.load("nothing")
    assert list(bench.host.unreadable()) == ["adder"]
    assert "manifest" in bench.host.unreadable()["adder"]
    assert bench.host.describe() == ()
    manifest.write_text(whole)
    assert bench.host.load("adder").state is ModelState.READY
    assert bench.host.unreadable() == {}


def test_another_manifest_of_a_loaded_model_is_not_loaded_over_it(tmp_path: Path) -> None:
    build_tensor_model(tmp_path)
    bench = Bench(tmp_path)
    bench.host.load("adder")
    manifest = tmp_path / "adder" / MANIFEST_NAME
    manifest.write_text(manifest.read_text().replace('"version": "1"', '"version": "2"'))
    with pytest.raises(ModelLoadError, match="unload it first"):
        bench.host.load("adder")
    bench.host.unload("adder")
    assert bench.host.load("adder").manifest.version == "2"
    manifest.unlink()
    assert bench.host.load("adder").state is ModelState.READY


def test_models_that_generate_text_are_left_to_other_workers(tmp_path: Path) -> None:
    build_tensor_model(tmp_path)
    decoder = tiny_gguf_decoder()
    write_gguf(tmp_path / "tiny.gguf", metadata_of(decoder), tensors_of(decoder))
    build_local(tmp_path / "tiny.gguf", tmp_path, "chat", int8=False, progress=Silent())
    host = Bench(tmp_path).host
    assert [name for name in host.available_models() if host.serves(name)] == ["adder"]
    with pytest.raises(ModelLoadError, match="generates text"):
        host.load("chat")
    (tmp_path / "chat" / MANIFEST_NAME).write_text("{}")
    # What cannot be read is loaded, so that the reason is seen.
    assert host.serves("chat")


def test_files_that_a_manifest_does_not_list_are_not_opened(tmp_path: Path) -> None:
    build_local_weights(tmp_path / "tiny", "extra.bin")
    with pytest.raises(ModelLoadError, match=r"'extra\.bin', which the manifest does not list"):
        Bench(tmp_path, "tiny-a").host.load("tiny")


def test_a_changed_tokenizer_keeps_a_variant_from_loading(tmp_path: Path) -> None:
    build_synthetic(tmp_path)
    manifest = load_manifest(tmp_path / "tiny")
    (ref,) = manifest.tokenizers.values()
    path = tmp_path / "tiny" / ref.path
    path.write_bytes(path.read_bytes().replace(b"good", b"goof"))
    with pytest.raises(ModelLoadError, match=f"{ref.path}: expected sha256"):
        Bench(tmp_path).host.load("tiny")


def test_a_file_that_is_a_link_to_another_folder_is_refused(tmp_path: Path) -> None:
    build_synthetic(tmp_path)
    graph = tmp_path / "tiny" / "tiny-a.onnx"
    graph.rename(tmp_path / "elsewhere.onnx")
    graph.symlink_to(tmp_path / "elsewhere.onnx")
    with pytest.raises(ModelLoadError, match="is not inside"):
        Bench(tmp_path).host.load("tiny")


def build_local_weights(folder: Path, location: str) -> None:
    """A model whose first graph names a weight file beside those of its manifest."""
    build_synthetic(folder.parent)
    graph = folder / "tiny-a.onnx"
    proto = onnx.load(graph)
    tensor = proto.graph.initializer.add(name="unused", data_type=onnx.TensorProto.FLOAT, dims=[1])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    (folder / location).write_bytes(bytes(4))
    graph.write_bytes(proto.SerializeToString())
    manifest = load_manifest(folder)
    files = {**manifest.files, graph.name: describe_file(folder, graph.name)}
    save_manifest(replace(manifest, files=files), folder)
