"""Tiny exported decoders, as they are or with something changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx

from worker.models.decoder import Architecture
from worker.models.graph import write_graph
from worker.models.synthetic_generator import write_tiny_export


def tiny_export(
    folder: Path,
    architecture: Architecture = "llama",
    *,
    context: int = 512,
    change: Callable[[onnx.ModelProto], None] | None = None,
) -> Path:
    """Write an export whose graph is changed before; return the folder."""
    write_tiny_export(folder, architecture, context=context)
    if change is not None:
        model = onnx.load(str(folder / "model.onnx"), load_external_data=False)
        change(model)
        write_graph(model, folder / "model.onnx")
    return folder
