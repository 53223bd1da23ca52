"""The builder of the default model, on a tiny base: what is finished is never done again."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.golden.checkpoints import HIDDEN, config_document, tiny_checkpoint
from worker.models import build, build_evidence, measurement
from worker.models.build import BuildReport, SentimentBuilder
from worker.models.calibration import Calibration, Escalation
from worker.models.dataset import POPULATION
from worker.models.evidence import tally_of
from worker.models.manifest import load_manifest, save_manifest, verify
from worker.models.pace import Pace
from worker.models.packages import CheckpointFiles, CheckpointPackages, Pin
from worker.models.populations import CLEAR_SUFFIX, FITTING_SUFFIX
from worker.models.progress import Progress, Report, Silent, Stoppable, Stopped, Unit
from worker.models.recorded import read_recorded, recorded_path
from worker.models.repository import find_model, list_models
from worker.models.sentiment import Recipe
from worker.models.synthetic import tiny_population, tiny_tokenizer


class TinySources:
    """A tiny BERT whose sizes fill 8-bit blocks, and rated sentences of the tiny language."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        weights = dict(tiny_checkpoint("bert"))
        for layer in range(2):
            prefix = f"bert.encoder.layer.{layer}."
            weights[f"{prefix}intermediate.dense.weight"] = np.full((64, HIDDEN), 0.01, np.float32)
            weights[f"{prefix}intermediate.dense.bias"] = np.zeros(64, np.float32)
            weights[f"{prefix}output.dense.weight"] = np.full((HIDDEN, 64), 0.01, np.float32)
        words = tiny_tokenizer().get_vocab_size()
        random = np.random.default_rng(2)
        weights["bert.embeddings.word_embeddings.weight"] = random.normal(
            0, 1, (words, HIDDEN)
        ).astype(np.float32)
        del weights["head.weight"], weights["head.bias"]
        save_file(
            {name.removeprefix("bert."): array for name, array in weights.items()},
            folder / "model.safetensors",
        )
        document = config_document("bert") | {"intermediate_size": 64, "vocab_size": words}
        (folder / "config.json").write_text(json.dumps(document))
        tiny_tokenizer().save(str(folder / "tokenizer.json"))
        lines = [
            f"{index}\t{2.0 if label else -0.5}\t{text}\n"
            for index, (text, label) in enumerate(tiny_population(300))
        ]
        (folder / "rated.txt").write_text("".join(lines))

    def checkpoint(self, source: CheckpointPackages) -> CheckpointFiles:
        return CheckpointFiles(
            self._folder / "model.safetensors",
            self._folder / "tokenizer.json",
            self._folder / "config.json",
        )

    def reviews(self) -> Path:
        return self._folder / "rated.txt"


class TinyRecipe(Recipe):
    """A recipe whose adapter lies in a test's folder and whose smallness follows its name."""

    folder = Path()

    @property
    def small(self) -> bool:
        return self.layers == 1

    @property
    def adapter(self) -> Path:
        return self.folder / f"{self.name}.safetensors"


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Recipe]:
    monkeypatch.setattr(TinyRecipe, "folder", tmp_path)
    nothing = Pin("", "0" * 64, 0)
    base = CheckpointPackages("tiny", (), (), False, "", nothing, nothing, nothing)
    random = np.random.default_rng(9)
    made: list[Recipe] = []
    for name, layers in (("deep", 2), ("flat", 1)):
        adapter = {
            "encoder.layer.0.attention.self.query.lora_A": random.normal(size=(4, HIDDEN)),
            "encoder.layer.0.attention.self.query.lora_B": random.normal(size=(HIDDEN, 4)) / 9,
            "head.weight": random.normal(size=(2, HIDDEN)),
            "head.bias": np.zeros(2),
        }
        save_file(
            {key: np.ascontiguousarray(value, np.float32) for key, value in adapter.items()},
            tmp_path / f"{name}.safetensors",
        )
        made.append(TinyRecipe(name, base, "tiny", layers))
    return made


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "repository"


def takes(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """Variants in 8 bits take so much of the time of their twins."""
    pace = Pace(share, round(1000 * share), 1000)
    monkeypatch.setattr(build_evidence, "relative_time", lambda *_: pace)


@pytest.fixture(autouse=True)
def int8_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured time is the machine's; here the 8-bit variants always save half of it."""
    takes(monkeypatch, 0.5)
    monkeypatch.setattr("worker.models.pace.LARGEST_LOSS", 1.0)


def run(
    tmp_path: Path,
    repository: Path,
    recipes: list[Recipe],
    *,
    small: bool = False,
    progress: Progress | None = None,
) -> BuildReport:
    ticks = itertools.count()
    builder = SentimentBuilder(
        repository, TinySources(tmp_path), progress or Silent(), lambda: next(ticks), recipes
    )
    return builder.build(small=small)


ALL = ["deep", "deep-int8", "flat", "flat-int8"]


def test_a_build_makes_and_measures_every_variant(
    tmp_path: Path, repository: Path, recipes: list[Recipe]
) -> None:
    report = run(tmp_path, repository, recipes)
    assert sorted(report.made) == sorted(report.measured) == ALL
    manifest = load_manifest(repository / "sentiment")
    assert manifest == report.manifest
    assert [variant.name for variant in manifest.variants] == ALL
    assert verify(repository / "sentiment") == []
    for variant in manifest.variants:
        every, clear = variant.evidence(POPULATION), variant.evidence(POPULATION + CLEAR_SUFFIX)
        assert every is not None
        assert clear is not None
        assert 0 < clear.n < every.n
    assert sum(path.endswith("tiny.weights") for path in manifest.files) <= 1


def test_a_second_build_only_looks(tmp_path: Path, repository: Path, recipes: list[Recipe]) -> None:
    first = run(tmp_path, repository, recipes)
    second = run(tmp_path, repository, recipes)
    assert (second.made, second.measured) == ((), ())
    assert second.manifest.digest == first.manifest.digest


def test_only_what_is_lost_is_made_again_and_its_evidence_stays(
    tmp_path: Path, repository: Path, recipes: list[Recipe]
) -> None:
    first = run(tmp_path, repository, recipes)
    (repository / "sentiment" / "flat.onnx").unlink()
    second = run(tmp_path, repository, recipes)
    assert (second.made, second.measured) == (("flat",), ())
    assert second.manifest == first.manifest


def test_another_adapter_is_made_and_measured_again(
    tmp_path: Path, repository: Path, recipes: list[Recipe]
) -> None:
    run(tmp_path, repository, recipes)
    (tmp_path / "flat.safetensors").write_bytes((tmp_path / "deep.safetensors").read_bytes())
    report = run(tmp_path, repository, recipes)
    assert sorted(report.made) == sorted(report.measured) == ["flat", "flat-int8"]


def test_a_small_build_keeps_what_an_earlier_one_made(
    tmp_path: Path, repository: Path, recipes: list[Recipe]
) -> None:
    report = run(tmp_path, repository, recipes, small=True)
    assert [variant.name for variant in report.manifest.variants] == ["flat", "flat-int8"]
    run(tmp_path, repository, recipes)
    report = run(tmp_path, repository, recipes, small=True)
    assert [variant.name for variant in report.manifest.variants] == ALL


def test_a_small_build_keeps_what_other_code_made(
    tmp_path: Path, repository: Path, recipes: list[Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(tmp_path, repository, recipes)
    monkeypatch.setattr(build, "code_digest", lambda: "of other code")
    report = run(tmp_path, repository, recipes, small=True)
    assert sorted(report.made) == ["flat", "flat-int8"]
    assert (report.kept, report.refused) == (("deep", "deep-int8"), ())
    assert report.manifest == first.manifest
    assert verify(repository / "sentiment") == []
    # One that looks after all of them makes these, too.
    report = run(tmp_path, repository, recipes)
    assert (sorted(report.made), report.kept) == (["deep", "deep-int8"], ())


@pytest.mark.parametrize("lost", ["deep.onnx", "tiny.weights"])
def test_a_small_build_says_what_it_takes_out_and_why(
    tmp_path: Path,
    repository: Path,
    recipes: list[Recipe],
    monkeypatch: pytest.MonkeyPatch,
    lost: str,
) -> None:
    run(tmp_path, repository, recipes)
    file = repository / "sentiment" / lost
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    monkeypatch.setattr(build, "code_digest", lambda: "of other code")
    report = run(tmp_path, repository, recipes, small=True)
    gone = ["deep"] if lost == "deep.onnx" else []
    assert [name for name, _ in report.refused] == gone
    assert all("makes it anew" in reason for _, reason in report.refused)
    kept = ["deep-int8"] if gone else ["deep", "deep-int8"]
    assert [v.name for v in report.manifest.variants] == [*kept, "flat", "flat-int8"]
    assert verify(repository / "sentiment") == []


def test_a_small_build_takes_out_what_shares_a_file_that_it_made_anew(
    tmp_path: Path, repository: Path, recipes: list[Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path, repository, recipes)
    manifest = load_manifest(repository / "sentiment")
    # As when the file had been another one.
    path = "tokenizers/tiny.json"
    other = replace(manifest.files[path], sha256="0" * 64)
    changed = replace(
        manifest, files=dict(manifest.files) | {path: other}, tokenizers={"tiny": other}
    )
    save_manifest(changed, repository / "sentiment")
    monkeypatch.setattr(build, "code_digest", lambda: "of other code")
    report = run(tmp_path, repository, recipes, small=True)
    assert [name for name, _ in report.refused] == ["deep", "deep-int8"]
    assert [v.name for v in report.manifest.variants] == ["flat", "flat-int8"]


def test_a_variant_that_does_not_pay_is_dropped_once(
    tmp_path: Path, repository: Path, recipes: list[Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    takes(monkeypatch, 1.1)
    report = run(tmp_path, repository, recipes)
    assert [name for name, _ in report.refused] == ["deep-int8", "flat-int8"]
    assert [variant.name for variant in report.manifest.variants] == ["deep", "flat"]
    assert not (repository / "sentiment" / "deep-int8.onnx").exists()
    again = run(tmp_path, repository, recipes)
    assert (again.made, again.measured) == ((), ())
    assert again.manifest == report.manifest


def test_a_variant_in_8_bits_that_loses_accuracy_is_not_served(
    tmp_path: Path, repository: Path, recipes: list[Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.models.pace.LARGEST_LOSS", -1.0)
    report = run(tmp_path, repository, recipes)
    assert [name for name, _ in report.refused] == ["deep-int8", "flat-int8"]
    assert sorted(report.measured) == ALL
    assert [v.name for v in report.manifest.variants] == ["deep", "flat"]
    again = run(tmp_path, repository, recipes)
    assert (again.measured, again.manifest) == ((), report.manifest)


class Interrupted(Silent):
    """Progress that ends a build when one variant has been run on some items."""

    @contextmanager
    def step(self, label: str, total: int, unit: Unit) -> Iterator[Report]:
        def report(done: int) -> None:
            if label == f"flat-int8 on {POPULATION}":
                raise KeyboardInterrupt

        yield report


def test_an_interrupted_build_keeps_what_is_done(
    tmp_path: Path, repository: Path, recipes: list[Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurement, "CHUNK", 8)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, repository, recipes, progress=Interrupted())
    tally = tally_of(repository / "sentiment", "flat-int8", POPULATION)
    assert tally is not None
    assert len(tally.right) == 8
    report = run(tmp_path, repository, recipes)
    assert report.made == ()
    assert "flat-int8" in report.measured
    assert len(report.manifest.variants) == 4


def test_stopped_work_ends_at_its_next_report() -> None:
    progress = Stoppable(Silent())
    with progress.step("a", 2, "items") as report:
        report(1)
        progress.stop()
        with pytest.raises(Stopped):
            report(2)
    with pytest.raises(Stopped), progress.step("b", 1, "items"):
        pass


def test_a_damaged_record_means_making_again(
    tmp_path: Path, repository: Path, recipes: list[Recipe]
) -> None:
    first = run(tmp_path, repository, recipes)
    (repository / "sentiment" / ".build" / "deep.json").write_text("{")
    report = run(tmp_path, repository, recipes)
    assert (report.made, report.measured) == (("deep",), ("deep",))
    assert report.manifest == first.manifest


def test_the_repository_lists_what_was_built(
    tmp_path: Path, repository: Path, recipes: list[Recipe]
) -> None:
    manifest = run(tmp_path, repository, recipes).manifest
    assert find_model(repository, "sentiment") == manifest
    (listing,) = list_models(repository)
    assert listing.manifest == manifest
    (repository / "other").mkdir()
    (repository / "other" / "manifest.json").write_text("{}")
    assert [(item.name, bool(item.fault)) for item in list_models(repository)] == [
        ("other", True),
        ("sentiment", False),
    ]
    assert replace(manifest, version="2") != manifest


def test_a_build_measures_confidence_and_a_second_one_finds_the_same(
    tmp_path: Path, repository: Path, recipes: list[Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("confidence", "escalations"):
        monkeypatch.setattr(f"worker.models.{module}.FEWEST_ITEMS", 10)
    stages = ["deep-int8", "flat-int8"]
    monkeypatch.setattr(build_evidence, "frontier", lambda points: set(points) & set(stages))
    manifest = run(tmp_path, repository, recipes).manifest
    calibrations = {v.name: v.calibration(POPULATION) for v in manifest.variants}
    assert [name for name, found in calibrations.items() if found] == stages
    items = {v.name: [e.n for e in v.quality] for v in manifest.variants}
    assert all(found is None or found.n == items[name][0] for name, found in calibrations.items())
    folder = repository / "sentiment"
    recorded = read_recorded(recorded_path(folder, POPULATION))
    assert sorted(recorded.logits) == ALL
    fitted = read_recorded(recorded_path(folder, POPULATION + FITTING_SUFFIX))
    assert sorted(fitted.logits) == stages
    again = run(tmp_path, repository, recipes)
    assert again.measured == ()
    assert again.manifest == manifest


def test_confidence_on_other_populations_stays_between_variants_that_did_not_change(
    tmp_path: Path, repository: Path, recipes: list[Recipe]
) -> None:
    manifest = run(tmp_path, repository, recipes).manifest
    evaluated = [
        replace(
            variant,
            calibrations=(Calibration("tweets", 1.0, 0.01, 600, 600),),
            escalations=tuple(
                Escalation("tweets", other, refused="no") for other in ALL if other != variant.name
            ),
        )
        for variant in manifest.variants
    ]
    save_manifest(replace(manifest, variants=tuple(evaluated)), repository / "sentiment")
    assert run(tmp_path, repository, recipes).manifest.variants == tuple(evaluated)
    (tmp_path / "flat.safetensors").write_bytes((tmp_path / "deep.safetensors").read_bytes())
    changed = {v.name: v for v in run(tmp_path, repository, recipes).manifest.variants}
    assert changed["flat"].calibrations == ()
    assert changed["flat-int8"].escalations == ()
    assert [item.to for item in changed["deep"].escalations] == ["deep-int8"]
    assert changed["deep"].calibrations == evaluated[0].calibrations
