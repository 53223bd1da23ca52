"""Computes the golden encoder outputs with torch and transformers (extra ``reference``).

Run ``python -m tests.golden.make_golden`` in an environment that has them; it rewrites
``encoders.json`` and notes the versions in it.
"""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tests.golden.checkpoints import CLASSES, config_document, sequences, tiny_checkpoint

TARGET = Path(__file__).with_name("encoders.json")
_CLASSES = {
    "bert": transformers.BertForSequenceClassification,
    "distilbert": transformers.DistilBertForSequenceClassification,
    "mpnet": transformers.MPNetForSequenceClassification,
}


def golden(family: str) -> dict[str, Any]:
    """Return stock logits, mean-head logits and unit mean embeddings of each sequence."""
    document = {k: v for k, v in config_document(family).items() if k != "model_type"}
    config = transformers.AutoConfig.for_model(
        family, **document, num_labels=CLASSES, attn_implementation="eager"
    )
    model = _CLASSES[family](config).eval()
    weights = {name: torch.from_numpy(array) for name, array in tiny_checkpoint(family).items()}
    head_weight, head_bias = weights.pop("head.weight"), weights.pop("head.bias")
    result = model.load_state_dict(weights, strict=False)
    unexpected = [*result.unexpected_keys]
    missing = [name for name in result.missing_keys if "position_ids" not in name]
    if unexpected or missing:
        raise SystemExit(f"{family}: unexpected {unexpected}, missing {missing}")
    stock, mean, unit = [], [], []
    with torch.no_grad():
        for sequence in sequences(family):
            ids = torch.tensor([sequence])
            stock.append(model(ids).logits[0])
            pooled = getattr(model, family)(ids).last_hidden_state[0].mean(dim=0)
            mean.append(head_weight @ pooled + head_bias)
            unit.append(torch.nn.functional.normalize(pooled, dim=0))
    return {"stock": _plain(stock), "mean": _plain(mean), "embedding": _plain(unit)}


def _plain(rows: list[Any]) -> list[list[float]]:
    return [[float(f"{x:.9g}") for x in row] for row in rows]


def main() -> None:
    """Write the golden file."""
    document: dict[str, Any] = {
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "outputs": {family: golden(family) for family in _CLASSES},
    }
    TARGET.write_text(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
