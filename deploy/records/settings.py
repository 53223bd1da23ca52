"""What a local cluster is told about records: a file in its state directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = "records.sqlite"


def records_overrides(
    config: Path | None, env: Mapping[str, str], state: Path, *, off: bool = False
) -> dict[str, Any]:
    """What to tell the control plane beyond its configuration; raises ConfigError.

    Where that names no file, records are kept below `state`, unless they are to be `off`.
    """
    from controlplane.config import ControlPlaneConfig
    from deploy.config import load_config

    if off:
        return {"records": {"file": ""}}
    told = load_config(ControlPlaneConfig, "controlplane", config, env).records
    return {} if told.file else {"records": {"file": str((state / FILE).absolute())}}
