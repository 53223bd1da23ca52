"""One description of a causal decoder for every family: shapes and weights, ready to emit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from worker.models.blocks import Matrix

Floats = NDArray[np.float32]
Architecture = Literal["llama", "gpt2"]


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Sizes of a decoder; ``context`` bounds the tokens of a sequence.

    ``llama`` has root-mean-square norms, rotary positions of base ``rope_theta`` and a gated
    SiLU; ``gpt2`` has layer norms, learned positions (``rope_theta`` 0) and GELU.
    """

    architecture: Architecture
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    context: int
    epsilon: float
    rope_theta: float


@dataclass(frozen=True, slots=True)
class Linear:
    """``x @ weight^T + bias``: weight [outputs, inputs], bias [outputs] or None."""

    weight: Matrix
    bias: Floats | None = None


@dataclass(frozen=True, slots=True)
class DecoderNorm:
    """A norm's scale [hidden], and shift for layer norms."""

    scale: Floats
    shift: Floats | None = None


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One pre-norm layer.

    ``qkv`` has the three projections one after the other; ``up`` of ``llama`` the gate and then
    the up projection.
    """

    attention_norm: DecoderNorm
    qkv: Linear
    attended: Linear
    mlp_norm: DecoderNorm
    up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Decoder:
    """A whole model. ``words`` [V, H] is also the head unless ``head`` is given."""

    config: DecoderConfig
    words: Matrix
    positions: Floats | None  # [context, H]
    layers: tuple[DecoderLayer, ...]
    norm: DecoderNorm
    head: Matrix | None = None
