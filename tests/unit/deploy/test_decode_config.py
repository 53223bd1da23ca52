"""What a decode worker is told, and which models are whose."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.config import ConfigError
from deploy.services import decode_config, served_models, worker_config
from worker.config import WorkerConfig
from worker.models.synthetic import build_synthetic
from worker.models.synthetic_generator import build_tiny_generator

FILE = """
worker:
  intra_op_threads: 1
  max_queued_items: 7
  models: [sentiment]
  variants: [mini6]
  log_level: error
decode:
  max_queued_items: 9
  kv_precision: fp32
"""


def test_the_decode_section_goes_on_where_the_workers_ends(tmp_path: Path) -> None:
    path = tmp_path / "orchid.yaml"
    path.write_text(FILE)
    env = {"ORCHID_WORKER_LOG_LEVEL": "debug", "ORCHID_DECODE_ARENA_MIB": "64"}
    config = decode_config(path, env, {"listen": "127.0.0.1:1"}, threads=3)
    assert (config.worker_class, config.intra_op_threads, config.spins) == ("decode", 3, True)
    assert (config.max_queued_items, config.kv_precision, config.arena_mib) == (9, "fp32", 64)
    assert (config.log_level, config.listen) == ("debug", "127.0.0.1:1")
    # Names of encoders' models and variants are not those of generators.
    assert (config.models, config.variants) == ((), ())
    encoder = worker_config(path, env, {})
    assert (encoder.worker_class, encoder.max_queued_items, encoder.spins) == ("encoder", 7, False)
    own = decode_config(path, {"ORCHID_DECODE_INTRA_OP_THREADS": "2"}, {}, threads=3)
    assert own.intra_op_threads == 2
    assert worker_config(path, {}, {"worker_class": "decode"}).kv_precision == "fp32"


def test_faults_of_the_decode_section_are_named(tmp_path: Path) -> None:
    path = tmp_path / "orchid.yaml"
    path.write_text("decode:\n  arena_mb: 5\n")
    with pytest.raises(ConfigError, match=r"orchid.yaml:2: .*did you mean 'arena_mib'"):
        decode_config(path, {}, {}, threads=1)
    with pytest.raises(ConfigError, match=r"scheduling: no scheduling policy 'best'"):
        decode_config(None, {"ORCHID_DECODE_SCHEDULING": "best"}, {}, threads=1)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"worker_class": "both"}, "worker_class: expected one of encoder, decode"),
        ({"kv_precision": "int8"}, "kv_precision: expected one of fp16, fp32"),
        ({"arena_mib": -1}, "arena_mib: expected at least 0"),
    ],
)
def test_values_out_of_range_are_named(changes: dict[str, str | int], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        WorkerConfig(**changes)  # type: ignore[arg-type]


def test_models_are_served_by_their_class_of_worker(tmp_path: Path) -> None:
    build_synthetic(tmp_path, "tiny")
    build_tiny_generator(tmp_path, "tiny-chat")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "manifest.json").write_text("{")
    served = served_models(WorkerConfig(repository=tmp_path))
    assert served.encoders == {"tiny", "broken"}
    assert served.generators == {"tiny-chat"}
    named = served_models(WorkerConfig(repository=tmp_path, models=("tiny-chat",)))
    assert named.encoders == set()
    assert named.all == {"tiny-chat"}
