"""What this process really holds: as the kernel counts pages, and the C library its heap."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from worker.prepared import source_of

_ROLLUP = Path("/proc/self/smaps_rollup")
_SMAPS = Path("/proc/self/smaps")
_STATM = Path("/proc/self/statm")
# A mapped file of `smaps` and what it counts for: a worker has tens of thousands of lines there.
_MAPPED = re.compile(
    rb"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+ +(/[^\n]*)\n(?:[A-Z][^\n]*\n)*?Pss: +(\d+) kB",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Bytes of one process; a page that others map too counts in equal parts for each (PSS).

    `anonymous` is its own memory, `mapped` its files, `huge` what of the first lies in huge pages.
    """

    pss: int
    anonymous: int
    mapped: int
    huge: int = 0


@dataclass(frozen=True, slots=True)
class Heap:
    """Bytes that the C library has given out, and those it keeps to give out again."""

    used: int = 0
    free: int = 0


def process_memory(rollup: Path = _ROLLUP, statm: Path = _STATM) -> ProcessMemory:
    """The process now. Where the kernel does not tell PSS, resident memory takes its place.

    Raises OSError when it tells neither.
    """
    try:
        values = _kilobytes(rollup.read_text())
        pss = values["Pss"]
    except (OSError, KeyError):
        resident, shared = (int(word) for word in statm.read_text().split()[1:3])
        page = os.sysconf("SC_PAGE_SIZE")
        return ProcessMemory(resident * page, (resident - shared) * page, shared * page)
    anonymous = values.get("Pss_Anon", values.get("Anonymous", 0))
    return ProcessMemory(pss, anonymous, pss - anonymous, values.get("AnonHugePages", 0))


def mapped_weights(repository: Path, cache: Path, smaps: Path = _SMAPS) -> Mapping[str, int]:
    """Mapped bytes (PSS) of weight files by their graph or model: "sentiment/mpnet8".

    Files below `cache` are prepared graphs, which belong to the graph they were made from; those
    below `repository` belong to their model's folder. Empty where the kernel does not tell.
    """
    prepared, sources = f"{cache.resolve()}/", f"{repository.resolve()}/"
    try:
        table = smaps.read_bytes()
    except OSError:
        return {}
    by_path: dict[bytes, int] = {}
    for mapping in _MAPPED.finditer(table):
        path, kilobytes = mapping.groups()
        by_path[path] = by_path.get(path, 0) + int(kilobytes) * 1024
    found: dict[str, int] = {}
    for raw, size in by_path.items():
        name = os.fsdecode(raw)
        if name.startswith(prepared):
            owner = _prepared_from(Path(name).parent, repository)
        elif name.startswith(sources):
            owner = name[len(sources) :].partition("/")[0]
        else:
            continue
        found[owner] = found.get(owner, 0) + size
    return found


def heap() -> Heap:
    """The C library's heap over all threads; zeros where it does not tell."""
    function = _mallinfo()
    if function is None:
        return Heap()
    info = function()
    return Heap(info.uordblks + info.hblkhd, info.fordblks)


def _prepared_from(entry: Path, repository: Path) -> str:
    source = source_of(entry)
    if source is None:
        return entry.name
    if source.is_relative_to(repository.resolve()):
        return source.relative_to(repository.resolve()).with_suffix("").as_posix()
    return f"{source.parent.name}/{source.stem}"


def _kilobytes(text: str) -> dict[str, int]:
    """The `Name: n kB` lines of a /proc file, in bytes."""
    values = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB":
            values[name] = int(words[0]) * 1024
    return values


class _Mallinfo2(ctypes.Structure):
    """`struct mallinfo2` of <malloc.h>, since glibc 2.33."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


@lru_cache(maxsize=1)
def _mallinfo() -> Any:
    function = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if function is not None:
        function.restype = _Mallinfo2
    return function
