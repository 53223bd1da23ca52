"""Profile files: read strictly, believed by workers of the same class with the same files."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.worker.test_host import Bench
from worker.hosted import variant_files
from worker.models.manifest import FileRef, load_manifest
from worker.models.synthetic import build_synthetic
from worker.profile import VariantProfile
from worker.profile_file import (
    SCHEMA,
    CrossCheck,
    MachineClass,
    MeasuredVariant,
    PassNote,
    ProfileFile,
    ProfileFileError,
    ShapeTime,
    content_digest,
    own_machine,
    profile_path,
    profiles_of,
    read_profile_file,
    stored_profiles,
    write_profile_file,
)

MACHINE = own_machine(1)


def measured(name: str, content: str) -> MeasuredVariant:
    return MeasuredVariant(
        content=content,
        profile=VariantProfile(name, 10.0, 2.0, 0.0, 32, 74.0, 80.0, 90.0, 0.05, 30),
        shapes=(ShapeTime((32,), 30, 74.0, 80.0, 90.0, 74.0),),
        passes=(PassNote(1.0, 0.1, 1.01), PassNote(1.1, 0.3, 1.0), PassNote(0.9, 0.2, 1.0)),
        spread=0.2,
        fit_error=0.01,
        check=CrossCheck((32,), 9, 74.0, 73.0, 74 / 73, 0.0),
    )


def files_of(folder: Path, name: str) -> Iterable[FileRef]:
    manifest = load_manifest(folder)
    variant = manifest.variant(name)
    assert variant is not None
    return variant_files(folder, manifest, variant).values()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return build_synthetic(tmp_path)


@pytest.fixture
def file(folder: Path) -> ProfileFile:
    content = content_digest(files_of(folder, "tiny-a"))
    made = ProfileFile(
        schema=SCHEMA,
        model="tiny",
        machine=MACHINE,
        host={"kernel": "6"},
        commit="abc",
        command="orchid profile tiny",
        finished="2026-01-01T00:00:00+00:00",
        variants={"tiny-a": measured("tiny-a", content)},
    )
    write_profile_file(profile_path(folder, MACHINE), made)
    return made


def test_what_is_written_is_read(folder: Path, file: ProfileFile) -> None:
    assert read_profile_file(profile_path(folder, MACHINE)) == file
    assert file.variants["tiny-a"].neighbours == pytest.approx(0.2)


def test_other_machines_have_other_files(folder: Path, file: ProfileFile) -> None:
    assert stored_profiles(folder, MACHINE) == file.variants
    assert stored_profiles(folder, replace(MACHINE, threads=2)) == {}
    unlike = MachineClass("other", "other-1-1-avx2", "avx2", 1)
    assert stored_profiles(folder, unlike) == {}
    write_profile_file(profile_path(folder, unlike), file)
    with pytest.raises(ProfileFileError, match="was measured on"):
        stored_profiles(folder, unlike)


@pytest.mark.parametrize("text", ["{", "{}", '{"schema": 1, "more": 2}'])
def test_a_damaged_file_is_an_error_that_names_it(folder: Path, text: str) -> None:
    path = profile_path(folder, MACHINE)
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ProfileFileError, match=path.name):
        read_profile_file(path)


def test_a_missing_file_was_not_measured_yet(folder: Path) -> None:
    with pytest.raises(ProfileFileError, match=f"no profile was measured yet: .*{MACHINE}.json"):
        read_profile_file(profile_path(folder, MACHINE))


def test_another_schema_is_refused(folder: Path, file: ProfileFile) -> None:
    path = profile_path(folder, MACHINE)
    write_profile_file(path, replace(file, schema=9))
    with pytest.raises(ProfileFileError, match="schema 9"):
        read_profile_file(path)


def test_a_worker_carries_the_measured_profile_of_its_files(
    folder: Path, file: ProfileFile
) -> None:
    bench = Bench(folder.parent, profile_of=profiles_of(MACHINE))
    snapshot = bench.host.load("tiny")
    first, second = snapshot.variants
    assert first.ready and second.ready
    assert first.profile == file.variants["tiny-a"].profile
    assert second.profile is not None and second.profile.samples > 0


def test_a_profile_of_other_files_or_a_broken_one_gives_way_to_the_warm_up(
    folder: Path, file: ProfileFile, caplog: pytest.LogCaptureFixture
) -> None:
    path = profile_path(folder, MACHINE)
    write_profile_file(path, replace(file, variants={"tiny-a": measured("tiny-a", "old")}))
    files = files_of(folder, "tiny-a")
    with caplog.at_level(logging.WARNING):
        assert profiles_of(MACHINE)(folder, "tiny-a", files) is None
        assert "of other files" in caplog.text
        path.write_text("{")
        assert profiles_of(MACHINE)(folder, "tiny-a", files) is None
        assert "goes by its warm-up" in caplog.text


def test_runs_far_from_the_measured_profile_are_told(
    folder: Path, file: ProfileFile, caplog: pytest.LogCaptureFixture
) -> None:
    entry = file.variants["tiny-a"]
    absurd = replace(entry, profile=replace(entry.profile, s0_us=1e9))
    write_profile_file(profile_path(folder, MACHINE), replace(file, variants={"tiny-a": absurd}))
    with caplog.at_level(logging.WARNING):
        Bench(folder.parent, profile_of=profiles_of(MACHINE)).host.load("tiny")
    assert "of what its measured profile says" in caplog.text
