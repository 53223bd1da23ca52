"""Runs items through one session, by the layout of the variant, and splits the outputs.

- ragged: the sequences of all items end to end, in one run;
- padded: sequences of near-equal length padded together, a run for each group;
- tensor: named tensors as they came, one item a run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from worker.errors import EngineFault, InvalidInput
from worker.jobs import Token
from worker.models.manifest import TensorSpec, Variant
from worker.records import Execution, Item, ItemOutcome, Tensors

# A padded group takes lengths up to this many times its shortest, or that many tokens more.
_NEAR_FACTOR = 1.125
_NEAR_TOKENS = 4

# What ndarray.max does, without its detour through Python.
_highest = np.maximum.reduce
_NEGATIVE = 2**31


class Session(Protocol):
    """One loaded graph, as `worker.engine.Session`."""

    def run(
        self,
        feeds: Mapping[str, NDArray[Any]],
        outputs: Mapping[str, NDArray[Any]] | None = None,
        *,
        token: Any = None,
    ) -> Mapping[str, NDArray[Any]]:
        """Runs the graph; raises InvalidInput, RunTerminated or EngineFault."""


def check_item(variant: Variant, vocabulary: int, item: Item) -> None:
    """Raises InvalidInput, naming what came and what is accepted, when an item cannot run.

    `vocabulary` bounds token ids; 0 when it is not known.
    """
    if variant.layout == "tensor":
        _check_tensors(variant, item)
    else:
        _check_tokens(variant, vocabulary, item)


def not_measured() -> int:
    """Stands for what nobody measures."""
    return 0


def run_items(
    session: Session,
    variant: Variant,
    vocabulary: int,
    items: Collection[Item],
    token: Token,
    take_peak: Callable[[], int] = not_measured,
) -> Execution:
    """Runs every valid item; the others get their error. Raises WorkerError when the run fails.

    `take_peak` gives the most bytes that a run of this thread held since it was last called.
    """
    outcomes: list[ItemOutcome | None] = []
    for item in items:
        try:
            check_item(variant, vocabulary, item)
            outcomes.append(None)
        except InvalidInput as error:
            outcomes.append(error)
    valid = [item for item, fault in zip(items, outcomes, strict=True) if fault is None]
    if not valid:
        return Execution(tuple(o for o in outcomes if o is not None), 0)
    # What others ran in this thread is not of these items.
    take_peak()
    results = iter(_isolating(_RUNS[variant.layout], session, variant, valid, token))
    tokens = sum(sum(item.lengths) for item in valid)
    padding = _padding(valid) if variant.layout == "padded" else 0
    peak_bytes = take_peak()
    done = tuple(next(results) if o is None else o for o in outcomes)
    return Execution(done, tokens, padding, peak_bytes)


Run = Callable[[Session, Variant, Sequence[Item], Token], list[Tensors]]


def _isolating(
    run: Run, session: Session, variant: Variant, items: Sequence[Item], token: Token
) -> Sequence[ItemOutcome]:
    """Runs items together; if that fails, one by one, so that only the guilty fail."""
    try:
        return run(session, variant, items, token)
    except (InvalidInput, EngineFault):
        if len(items) == 1:
            raise
    outcomes: list[ItemOutcome] = []
    for item in items:
        try:
            outcomes += run(session, variant, [item], token)
        except (InvalidInput, EngineFault) as error:
            outcomes.append(error)
    return outcomes


def run_ragged(
    session: Session, variant: Variant, items: Sequence[Item], token: Token
) -> list[Tensors]:
    """One run over the flattened tokens of all items; rows go back by sequence counts."""
    lengths = [length for item in items for length in item.lengths]
    offsets = np.array((0, *itertools.accumulate(lengths)), np.int32)
    if len(items) == 1:
        ids = items[0].token_ids.astype(np.int64)
    else:
        ids = np.concatenate([item.token_ids for item in items], dtype=np.int64)
    outputs = session.run({"input_ids": ids, "row_offsets": offsets}, token=token)
    _check_rows(variant, outputs, len(lengths))
    results: list[Tensors] = []
    first = 0
    for item in items:
        rows = slice(first, first + len(item.lengths))
        results.append({name: array[rows] for name, array in outputs.items()})
        first = rows.stop
    return results


def run_padded(
    session: Session, variant: Variant, items: Sequence[Item], token: Token
) -> list[Tensors]:
    """A run for each group of near-equal lengths; rows go back to their item and place."""
    sequences = [row for item in items for row in split_sequences(item)]
    rows: list[dict[str, NDArray[Any]]] = [{} for _ in sequences]
    for group in near_equal_groups([len(sequence) for sequence in sequences]):
        longest = max(len(sequences[index]) for index in group)
        ids = np.zeros((len(group), longest), np.int64)
        mask = np.zeros_like(ids)
        for row, index in enumerate(group):
            ids[row, : len(sequences[index])] = sequences[index]
            mask[row, : len(sequences[index])] = 1
        outputs = session.run(_padded_feeds(variant, ids, mask), token=token)
        _check_rows(variant, outputs, len(group))
        for name, array in outputs.items():
            per_token = _is_per_token(variant, name, array, longest)
            for row, index in enumerate(group):
                value = array[row]
                rows[index][name] = value[: len(sequences[index])] if per_token else value
    results: list[Tensors] = []
    first = 0
    for item in items:
        mine = rows[first : first + len(item.lengths)]
        results.append({name: _stack([row[name] for row in mine]) for name in mine[0]})
        first += len(mine)
    return results


def run_tensor(
    session: Session, variant: Variant, items: Sequence[Item], token: Token
) -> list[Tensors]:
    """One run an item."""
    return [session.run(item.tensors, token=token) for item in items]


_RUNS: dict[str, Run] = {"ragged": run_ragged, "padded": run_padded, "tensor": run_tensor}


def split_sequences(item: Item) -> list[NDArray[np.int32]]:
    """The token ids of each sequence of an item; views, not copies."""
    return np.split(item.token_ids, np.cumsum(item.lengths)[:-1])


def near_equal_groups(lengths: Sequence[int]) -> list[list[int]]:
    """Partitions sequence indices, shortest first, so that little of a group is padding."""
    groups: list[list[int]] = []
    limit = -1.0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if lengths[index] > limit:
            groups.append([])
            limit = max(lengths[index] * _NEAR_FACTOR, lengths[index] + _NEAR_TOKENS)
        groups[-1].append(index)
    return groups


def _padding(items: Sequence[Item]) -> int:
    """Positions that padding the items' sequences group by group adds."""
    lengths = [length for item in items for length in item.lengths]
    added = 0
    for group in near_equal_groups(lengths):
        sizes = [lengths[index] for index in group]
        added += max(sizes) * len(sizes) - sum(sizes)
    return added


def _padded_feeds(
    variant: Variant, ids: NDArray[np.int64], mask: NDArray[np.int64]
) -> dict[str, NDArray[Any]]:
    values = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    return {
        spec.name: values[spec.name].astype(spec.dtype, copy=False)
        for spec in variant.inputs
        if spec.name in values
    }


def _is_per_token(variant: Variant, name: str, array: NDArray[Any], longest: int) -> bool:
    declared = next((spec.shape for spec in variant.outputs if spec.name == name), ())
    return array.ndim > 1 and array.shape[1] == longest and len(declared) > 1 and declared[1] == -1


def _stack(rows: list[NDArray[Any]]) -> NDArray[Any]:
    """Stacks rows whose first dimension may differ, with zeros behind the short ones."""
    if len({row.shape for row in rows}) == 1:
        return np.stack(rows)
    longest = max(len(row) for row in rows)
    stacked = np.zeros((len(rows), longest, *rows[0].shape[1:]), rows[0].dtype)
    for target, row in zip(stacked, rows, strict=True):
        target[: len(row)] = row
    return stacked


def _check_rows(variant: Variant, outputs: Tensors, rows: int) -> None:
    for name, array in outputs.items():
        if array.ndim == 0 or array.shape[0] != rows:
            raise EngineFault(
                f"variant {variant.name!r} returned {name!r} of shape {array.shape} "
                f"for {rows} sequences"
            )


def _check_tokens(variant: Variant, vocabulary: int, item: Item) -> None:
    if not item.lengths:
        sent = f"tensors {sorted(item.tensors)}" if item.tensors else "no sequence"
        raise InvalidInput(f"variant {variant.name!r} takes token sequences, got {sent}")
    if min(item.lengths) < 1:
        raise InvalidInput("a sequence needs at least one token, got an empty one")
    if max(item.lengths) > variant.max_tokens:
        raise InvalidInput(
            f"variant {variant.name!r} takes at most {variant.max_tokens} tokens a sequence, "
            f"got {max(item.lengths)}"
        )
    if sum(item.lengths) != len(item.token_ids):
        raise InvalidInput(
            f"lengths count {sum(item.lengths)} tokens, got {len(item.token_ids)} token ids"
        )
    # Read as unsigned, a negative id is one that is far too high.
    highest = int(_highest(item.token_ids.view(np.uint32)))
    if highest >= (vocabulary or _NEGATIVE):
        wrong = highest if highest < _NEGATIVE else int(item.token_ids.min())
        limit = f"0 to {vocabulary - 1}" if vocabulary else "not negative"
        raise InvalidInput(
            f"token ids of variant {variant.name!r} are {limit} "
            f"(tokenizer {variant.tokenizer!r}), got {wrong}"
        )


def _check_tensors(variant: Variant, item: Item) -> None:
    accepted = ", ".join(_text(spec) for spec in variant.inputs)
    if item.lengths:
        raise InvalidInput(f"variant {variant.name!r} takes tensors {accepted}, got token ids")
    known = {spec.name: spec for spec in variant.inputs}
    unknown = sorted(item.tensors.keys() - known.keys())
    if unknown:
        raise InvalidInput(f"unknown tensors {unknown}; {variant.name!r} takes {accepted}")
    missing = sorted(known.keys() - item.tensors.keys())
    if missing:
        raise InvalidInput(f"missing tensors {missing}; {variant.name!r} takes {accepted}")
    for name, array in item.tensors.items():
        if not _fits(known[name], array):
            sent = _text(TensorSpec(name, dtype_name(array), array.shape))
            raise InvalidInput(f"expected tensor {_text(known[name])}, got {sent}")


def _fits(spec: TensorSpec, array: NDArray[Any]) -> bool:
    return (
        spec.dtype == dtype_name(array)
        and len(spec.shape) == array.ndim
        and all(want in (-1, got) for want, got in zip(spec.shape, array.shape, strict=True))
    )


def dtype_name(array: NDArray[Any]) -> str:
    """The name of a tensor's element type: numpy's, or `string` for an array of objects."""
    return "string" if array.dtype == object else array.dtype.name


def _text(spec: TensorSpec) -> str:
    return f"{spec.name} {spec.dtype}{list(spec.shape)}"
