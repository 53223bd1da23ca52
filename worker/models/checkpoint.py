"""Reads checkpoint folders (safetensors, config.json, tokenizer.json) and merges adapters."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from worker.models.errors import CheckpointError

_ADAPTER_SUFFIXES = (".lora_A", ".lora_B")


class SafetensorsFiles(Mapping[str, NDArray[Any]]):
    """The tensors of one or several safetensors files, read when asked for.

    A context manager; raises CheckpointError for a file that is not what it should be.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}
        for path in paths:
            try:
                file = self._stack.enter_context(safe_open(path, framework="numpy"))
            except (OSError, SafetensorError) as error:
                self._stack.close()
                raise CheckpointError(
                    f"a safetensors file {path.name}", str(error), "download or save it again"
                ) from error
            for name in file.keys():  # noqa: SIM118 - the handle is no mapping
                self._files[name] = file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __getitem__(self, name: str) -> NDArray[Any]:
        file = self._files[name]
        kind = file.get_slice(name).get_dtype()
        if kind not in ("F16", "F32", "F64", "I64", "I32"):
            raise CheckpointError(
                f"floating-point weights of type F16, F32 or F64 in {name!r}",
                kind,
                "convert the checkpoint to one of these types",
            )
        tensor: NDArray[Any] = file.get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


class MergedWeights(Mapping[str, NDArray[Any]]):
    """Base weights with low-rank adapters added in float32, plus the adapter's own tensors.

    ``<module>.weight`` becomes ``weight + lora_B @ lora_A``: A [rank, in], B [out, rank], with
    the adapter's scale already inside B (Hu et al. 2021).
    """

    def __init__(
        self, base: Mapping[str, NDArray[Any]], adapter: Mapping[str, NDArray[Any]]
    ) -> None:
        self._base = base
        self._adapter = adapter
        self._own = tuple(name for name in adapter if not name.endswith(_ADAPTER_SUFFIXES))
        for name in adapter:
            module, _, kind = name.rpartition(".")
            if kind in ("lora_A", "lora_B") and f"{module}.weight" not in base:
                raise CheckpointError(
                    f"a weight {module}.weight for the adapter",
                    "a base checkpoint without it",
                    "use the base checkpoint that the adapter was trained on",
                )

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self._base

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name in self._own:
            return self._adapter[name]
        weight = self._base[name]
        module = name.removesuffix(".weight")
        if f"{module}.lora_A" not in self._adapter:
            return weight
        low = np.asarray(self._adapter[f"{module}.lora_A"], np.float32)
        high = np.asarray(self._adapter[f"{module}.lora_B"], np.float32)
        merged: NDArray[Any] = np.asarray(weight, np.float32) + high @ low
        return merged

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from self._base

    def __len__(self) -> int:
        return len(self._own) + len(self._base)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; raises CheckpointError when the file is missing or something else."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(
            f"a file {path.name} in {path.parent}", error.strerror or "none", "add the file"
        ) from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"JSON in {path}", str(error), "replace the file") from error
    if not isinstance(document, dict):
        raise CheckpointError(
            f"a JSON object in {path}", type(document).__name__, "replace the file"
        )
    return document


def labels_of(named: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the labels of classes 0, 1, ... from the ``id2label`` of a config.json.

    Raises CheckpointError when other keys are there.
    """
    numbers = [str(index) for index in range(len(named))]
    if named.keys() != set(numbers):
        raise CheckpointError(
            f"'id2label' in config.json to name the classes 0 to {len(named) - 1}",
            ", ".join(map(str, named))[:80] or "nothing",
            "correct config.json, or give --label once for each class",
        )
    return tuple(str(named[number]) for number in numbers)


def plain_tokenizer(path: Path) -> bytes:
    """Return a ``tokenizer.json`` without truncation and padding.

    Admission counts a text's own tokens, so neither may be hidden in the tokenizer.
    """
    document = read_json(path)
    if "model" not in document:
        raise CheckpointError(
            f"a tokenizer document with a model in {path}",
            f"keys {sorted(document)}",
            "save the fast tokenizer again",
        )
    plain = document | {"truncation": None, "padding": None}
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()


def read_tokenizer(document: bytes) -> Tokenizer:
    """Return the tokenizer of a document; raises CheckpointError when it is none."""
    try:
        return Tokenizer.from_buffer(document)
    except ValueError as error:
        raise CheckpointError(
            "a tokenizer that the tokenizers library reads",
            str(error),
            "save the fast tokenizer again",
        ) from error


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint folder.

    Raises CheckpointError when there are none.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        present = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
        raise CheckpointError(
            f"safetensors files in {folder}",
            present,
            "save the checkpoint with safe serialization",
        )
    return files
