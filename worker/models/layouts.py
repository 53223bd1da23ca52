"""The signatures of the layouts that the project's own graphs have."""

from __future__ import annotations

from worker.models.manifest import Layout, TensorSpec

RAGGED_INPUTS = (
    TensorSpec("input_ids", "int64", (-1,)),
    TensorSpec("row_offsets", "int32", (-1,)),
)
PADDED_INPUTS = (
    TensorSpec("input_ids", "int64", (-1, -1)),
    TensorSpec("attention_mask", "int64", (-1, -1)),
)


def text_inputs(layout: Layout) -> tuple[TensorSpec, ...]:
    """Return the inputs of a token graph: ragged ``[T]`` with offsets, or padded ``[batch, seq]``.

    Raises ValueError for the tensor layout, whose inputs are the graph's own.
    """
    if layout == "ragged":
        return RAGGED_INPUTS
    if layout == "padded":
        return PADDED_INPUTS
    raise ValueError("expected layout 'ragged' or 'padded', got 'tensor'")


def classifier_outputs(classes: int) -> tuple[TensorSpec, ...]:
    """Return the output of a classifier: ``logits`` [sequences, classes]."""
    return (TensorSpec("logits", "float32", (-1, classes)),)


def embedder_outputs(hidden: int) -> tuple[TensorSpec, ...]:
    """Return the output of an embedder: ``embedding`` [sequences, hidden], unit length."""
    return (TensorSpec("embedding", "float32", (-1, hidden)),)
