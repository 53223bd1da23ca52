"""The package archives this machine is configured for, read from apt's source files."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Archive:
    """One archive address with the suites it is used for; `options` as in a deb822 file."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    options: tuple[tuple[str, str], ...]  # Signed-By (path, fingerprint or key block), Trusted


def parse_list(text: str) -> list[Archive]:
    """Archives of a one-line-style `.list` file: `deb [options] uri suite component...`."""
    archives = []
    for line in text.splitlines():
        words = line.split("#", 1)[0].split()
        if not words or words[0] != "deb":
            continue
        options: list[tuple[str, str]] = []
        if len(words) > 1 and words[1].startswith("["):
            head, _, tail = " ".join(words[1:]).partition("]")
            for option in shlex.split(head.lstrip("[")):
                key, _, value = option.partition("=")
                if key.lower() in ("signed-by", "trusted"):
                    options.append((key.title(), value.replace(",", " ")))
            words = ["deb", *tail.split()]
        if len(words) >= 4:
            archives.append(Archive(words[1], (words[2],), tuple(words[3:]), tuple(options)))
    return archives


def parse_deb822(text: str) -> list[Archive]:
    """Archives of a deb822-style `.sources` file; disabled and source-only stanzas are left out."""
    archives = []
    for stanza in _stanzas(text):
        if "deb" not in stanza.get("types", "").split():
            continue
        if stanza.get("enabled", "yes").strip().lower() in ("no", "false", "0"):
            continue
        options = tuple(
            (name, stanza[name.lower()])
            for name in ("Signed-By", "Trusted")
            if name.lower() in stanza
        )
        archives += [
            Archive(
                uri,
                tuple(stanza.get("suites", "").split()),
                tuple(stanza.get("components", "").split()),
                options,
            )
            for uri in stanza.get("uris", "").split()
        ]
    return archives


def _stanzas(text: str) -> list[dict[str, str]]:
    stanzas: list[dict[str, str]] = [{}]
    field = ""
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if not line.strip():
            stanzas.append({})
        elif line[0] in " \t":
            # A key block is kept as it stands, ready to be written into another stanza.
            stanzas[-1][field] += "\n" + line
        else:
            name, _, value = line.partition(":")
            field = name.strip().lower()
            stanzas[-1][field] = value.strip()
    return [stanza for stanza in stanzas if stanza]


def configured() -> list[Archive]:
    """Every archive of this machine, in apt's order; empty where there is no apt."""
    try:
        listing = subprocess.run(
            ["apt-config", "shell", "L", "Dir::Etc::sourcelist/f", "P", "Dir::Etc::sourceparts/d"],
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return []
    paths = dict(line.partition("=")[::2] for line in shlex.split(listing))
    files = [Path(paths.get("L", "")), *sorted(Path(paths.get("P", "/nonexistent")).glob("*"))]
    archives: list[Archive] = []
    for file in files:
        if not file.is_file():
            continue
        if file.suffix == ".list":
            archives += parse_list(file.read_text())
        elif file.suffix == ".sources":
            archives += parse_deb822(file.read_text())
    return archives


def stanza(archive: Archive, suite: str) -> str:
    """A deb822 stanza for `suite` of the same archive, trusted the same way."""
    lines = ["Types: deb", f"URIs: {archive.uri}", f"Suites: {suite}", "Components: main"]
    lines += [f"{name}: {value}" for name, value in archive.options]
    return "\n".join(lines) + "\n"
