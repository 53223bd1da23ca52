"""Writes one variant of an encoder into a model's folder."""

from __future__ import annotations

from pathlib import Path

from worker.models.architecture import Encoder
from worker.models.emitter import Precision
from worker.models.encoders import emit_encoder, output_specs, own_arrays, shared_arrays
from worker.models.graph import write_graph
from worker.models.layouts import text_inputs
from worker.models.manifest import FileRef, Layout, Variant, describe_file
from worker.models.weights import place_weights, write_weights


def write_shared(folder: Path, encoder: Encoder, location: str) -> FileRef:
    """Write the weights that every variant of one base has in common; return their file."""
    partial = folder / f"{location}.partial"
    write_weights(place_weights(shared_arrays(encoder), location), partial)
    partial.replace(folder / location)
    return describe_file(folder, location)


def write_variant(
    folder: Path,
    encoder: Encoder,
    *,
    name: str,
    layout: Layout,
    precision: Precision,
    shared: str,
    tokenizer: str,
    warm_lengths: tuple[int, ...],
) -> tuple[Variant, tuple[FileRef, ...]]:
    """Write ``<name>.onnx`` and ``<name>.weights``; the graph also refers to the file ``shared``.

    Returns the variant, still without evidence, and the references of the two files.
    """
    weights, graph = f"{name}.weights", f"{name}.onnx"
    own = place_weights(own_arrays(encoder, precision), weights)
    tensors = {**place_weights(shared_arrays(encoder), shared).tensors, **own.tensors}
    model = emit_encoder(encoder.config, encoder.head, tensors, layout, precision)
    partial = folder / f"{weights}.partial"
    write_weights(own, partial)
    partial.replace(folder / weights)
    partial = folder / f"{graph}.partial"
    write_graph(model, partial)
    partial.replace(folder / graph)
    files = [describe_file(folder, graph)]
    if own.size:
        files.append(describe_file(folder, weights))
    else:
        (folder / weights).unlink()
    variant = Variant(
        name=name,
        layout=layout,
        precision=precision,
        graph=graph,
        tokenizer=tokenizer,
        max_tokens=encoder.config.max_tokens,
        inputs=text_inputs(layout),
        outputs=output_specs(encoder.config, encoder.head),
        warm_lengths=tuple(n for n in warm_lengths if n <= encoder.config.max_tokens),
    )
    return variant, tuple(files)
