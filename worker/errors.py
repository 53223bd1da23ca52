"""Domain errors of the worker. None carries tensor contents; `worker/rpc` maps them to statuses."""

from __future__ import annotations

import traceback


class WorkerError(Exception):
    """Base of every failure the worker answers with."""


class EngineError(WorkerError):
    """Base of the failures of one model session or one of its runs."""


class InvalidInput(EngineError):
    """The caller's tensors do not fit the model: names the tensor, what came, what is accepted."""


class ModelLoadError(EngineError):
    """A model file, or ONNX Runtime itself, could not be loaded; says why and what to do."""


class RunTerminated(EngineError):
    """The run's token fired before the run ended."""


class EngineFault(EngineError):
    """ONNX Runtime failed while running a model whose inputs were accepted."""


def where_raised(fault: BaseException) -> str:
    """The frames of a fault of ours, for the log; its text may quote content and is left out."""
    return "".join(traceback.format_tb(fault.__traceback__))
