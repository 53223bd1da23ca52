"""The golden logits of the default language model: where they are and of which prompts."""

from __future__ import annotations

from pathlib import Path

GOLDEN = Path(__file__).with_name("golden.json")
# Lengths of the prompts; each is the bench's prompt of that number.
PROMPTS = (37, 256, 900)
# So many of the largest logits behind a prompt are kept.
KEPT = 16
