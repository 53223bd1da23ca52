"""The signatures of the layouts of the project's own graphs, and what tokens take in them."""

from __future__ import annotations

from worker.models.manifest import KvGeometry, Layout, TensorSpec

RAGGED_INPUTS = (
    TensorSpec("input_ids", "int64", (-1,)),
    TensorSpec("row_offsets", "int32", (-1,)),
)
PADDED_INPUTS = (
    TensorSpec("input_ids", "int64", (-1, -1)),
    TensorSpec("attention_mask", "int64", (-1, -1)),
)
# Float32, and three times: in the arena, and in the tensors that go into a run and come out of it.
_DENSE_ITEM_BYTES = 3 * 4


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


def kv_token_bytes(layout: Layout, kv: KvGeometry, item_bytes: int) -> int:
    """Return the bytes that a worker needs for the keys and values of one token.

    ``item_bytes`` is the size of one in the arena of a paged decoder. A dense one keeps float32
    whatever is asked, and the tensors that its steps copy are counted too.
    """
    each = _DENSE_ITEM_BYTES if layout == "dense" else item_bytes
    return 2 * kv.layers * kv.kv_heads * kv.head_dim * each
