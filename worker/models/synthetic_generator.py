"""A tiny model that generates text, built in a fraction of a second; what it says makes no sense.

Its vocabulary has every byte, so any text can be asked and answers hold characters of several
tokens.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from worker.models.decoder import Architecture, Decoder
from worker.models.generator import DecoderSource, build_generator
from worker.models.gguf_tokenizer import TextSettings
from worker.models.graph import write_graph
from worker.models.paged import DecoderPrecision
from worker.models.progress import Silent
from worker.models.records import digest
from worker.models.stock_decoder import emit_stock
from worker.models.synthetic_decoder import quantized_decoder, tiny_decoder
from worker.models.weights import write_weights

END, TURN, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_MERGES = (("t", "h"), ("th", "e"), ("i", "n"), ("e", "r"), ("a", "n"), ("Ġ", "the"))


def tiny_generator_tokenizer() -> Tokenizer:
    """Return a byte-level tokenizer: three special tokens, 256 bytes and a few merges."""
    words = [END, TURN, TURN_END, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    words += ["".join(merge) for merge in _MERGES]
    vocabulary = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=list(_MERGES)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(word, special=True, normalized=False) for word in (END, TURN, TURN_END)]
    )
    return tokenizer


def tiny_generator_decoder(*, context: int = 512, seed: int = 1) -> Decoder:
    """Return its decoder, in blocks of 4 and 8 bits; a head of its own keeps it from repeating."""
    vocabulary = tiny_generator_tokenizer().get_vocab_size()
    dense = tiny_decoder(vocabulary=vocabulary, context=context, seed=seed, tied=False)
    return quantized_decoder(dense)


def build_tiny_generator(
    repository: Path,
    name: str = "tiny-chat",
    *,
    precisions: tuple[DecoderPrecision, ...] = ("fp32",),
    context: int = 512,
    seed: int = 1,
) -> Path:
    """Build the model into a repository and return its folder."""
    decoder = tiny_generator_decoder(context=context, seed=seed)
    text = TextSettings(
        tokenizer=tiny_generator_tokenizer().to_str().encode(),
        chat_template=CHAT_TEMPLATE,
        end_tokens=(0, 2),
        begin_token=None,
    )
    identity = digest(synthetic=name, context=context, seed=seed)
    source = DecoderSource(identity, decoder.config, text, True, lambda: decoder)
    return build_generator(repository, name, source, precisions, Silent()).folder


def write_tiny_export(
    folder: Path, architecture: Architecture = "llama", *, context: int = 512, seed: int = 1
) -> Path:
    """Write what exporters write of such a decoder, dense in fp32, and return the folder.

    It has the stock graph with its weights beside it, tokenizer.json, config.json and
    tokenizer_config.json.
    """
    tokenizer = tiny_generator_tokenizer()
    decoder = tiny_decoder(
        architecture,
        vocabulary=tokenizer.get_vocab_size(),
        context=context,
        seed=seed,
        tied=False,
    )
    folder.mkdir(parents=True, exist_ok=True)
    model, weights = emit_stock(decoder, "model.weights")
    write_weights(weights, folder / "model.weights")
    write_graph(model, folder / "model.onnx")
    tokenizer.save(str(folder / "tokenizer.json"))
    length = "max_position_embeddings" if architecture == "llama" else "n_positions"
    config = {"model_type": architecture, length: context, "eos_token_id": [0, 2]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
    return folder
