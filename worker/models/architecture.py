"""One description of an encoder for every family: shapes, weights and heads, ready to emit.

All matrices are stored as the graph multiplies them, ``[inputs, outputs]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Family = Literal["bert", "distilbert", "mpnet"]
Pooling = Literal["mean", "first"]
HiddenActivation = Literal["gelu", "relu"]
HeadActivation = Literal["tanh", "relu"]


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """Sizes of an encoder; ``epsilon`` is of its layer norms, ``max_tokens`` counts specials."""

    family: Family
    layers: int
    hidden: int
    heads: int
    intermediate: int
    vocabulary: int
    max_tokens: int
    epsilon: float
    activation: HiddenActivation = "gelu"


@dataclass(frozen=True, slots=True)
class Affine:
    """``x @ weight + bias``: weight [inputs, outputs], bias [outputs]."""

    weight: Floats
    bias: Floats


@dataclass(frozen=True, slots=True)
class Norm:
    """A layer norm's scale and shift, each [hidden]."""

    scale: Floats
    shift: Floats


@dataclass(frozen=True, slots=True)
class Layer:
    """One post-norm transformer layer; ``qkv`` has the three projections side by side [H, 3H]."""

    qkv: Affine
    attended: Affine
    attended_norm: Norm
    up: Affine
    down: Affine
    output_norm: Norm


@dataclass(frozen=True, slots=True)
class Embeddings:
    """What turns ids into the first hidden state; independent of any adapter.

    ``words`` [V, H]; ``positions`` [M, H], row 0 for the first token, with the type-0 row of
    families that have token types folded in; ``distances`` [heads, 2M-1] is the attention bias
    for key minus query position ``index - (M - 1)``, or None.
    """

    words: Floats
    positions: Floats
    norm: Norm
    distances: Floats | None


@dataclass(frozen=True, slots=True)
class Head:
    """What turns hidden states into the answer: pool, then an optional dense layer, then output.

    Without ``output`` the pooled state is the answer, scaled to unit length.
    """

    pooling: Pooling
    dense: Affine | None = None
    dense_activation: HeadActivation = "tanh"
    output: Affine | None = None


@dataclass(frozen=True, slots=True)
class Encoder:
    """A whole model: everything the graph emitters need."""

    config: EncoderConfig
    embeddings: Embeddings
    layers: tuple[Layer, ...]
    head: Head
