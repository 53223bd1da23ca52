"""The tokenizer and chat settings inside a GGUF file, in the forms other programs read."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from worker.models.errors import CheckpointError
from worker.models.gguf import GgufFile

_REMEDY = "use a GGUF file with a byte-level BPE tokenizer, or a folder with its tokenizer.json"
_CONTROL = 3
# Tokens that end an answer whatever the file's one end-of-sequence id says.
_ENDINGS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "</s>")


@dataclass(frozen=True, slots=True)
class TextSettings:
    """``tokenizer`` is a ``tokenizer.json``; see manifest.Generation for the rest."""

    tokenizer: bytes
    chat_template: str
    end_tokens: tuple[int, ...]
    begin_token: int | None


def text_settings(file: GgufFile) -> TextSettings:
    """Return a GGUF file's tokenizer and settings; raises CheckpointError for other kinds."""
    tokens: list[str] = file.value("tokenizer.ggml.tokens", list)
    kinds: list[int] = file.value("tokenizer.ggml.token_type", list)
    end = file.value("tokenizer.ggml.eos_token_id", int)
    control = {token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL}
    ids = {token: index for index, token in enumerate(tokens)}
    endings = {end} | {ids[token] for token in _ENDINGS if token in control}
    # Without this the model was trained without one, whatever its id is.
    begins = file.metadata.get("tokenizer.ggml.add_bos_token", False) is True
    return TextSettings(
        tokenizer=_tokenizer(file, ids, control).to_str().encode(),
        chat_template=str(file.metadata.get("tokenizer.chat_template", "")),
        end_tokens=tuple(sorted(endings)),
        begin_token=file.value("tokenizer.ggml.bos_token_id", int) if begins else None,
    )


def _tokenizer(file: GgufFile, ids: dict[str, int], control: set[str]) -> Tokenizer:
    kind = file.value("tokenizer.ggml.model", str)
    splitter = file.metadata.get("tokenizer.ggml.pre", "default")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    before = {
        "smollm": pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), byte_level]
        ),
        "gpt-2": byte_level,
    }.get(splitter)
    if kind != "gpt2" or before is None:
        raise CheckpointError(
            "tokenizer 'gpt2' with splitter 'smollm' or 'gpt-2'",
            f"{kind!r}, {splitter!r}",
            _REMEDY,
        )
    merges = []
    for merge in file.value("tokenizer.ggml.merges", list):
        left, _, right = merge.partition(" ")
        merges.append((left, right))
    try:
        tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges))
    except Exception as error:  # the library has no class of its own for this
        raise CheckpointError("merges of known tokens", str(error), _REMEDY) from error
    tokenizer.pre_tokenizer = before
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(t, special=True, normalized=False)
            for t in sorted(control, key=ids.__getitem__)
        ]
    )
    return tokenizer
