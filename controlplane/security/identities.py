"""Who may call, and as whom: a file of names, tenants, roles, token hashes and certificates."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from controlplane.policy.rates import Rate

log = logging.getLogger(__name__)

Role = Literal["infer", "operate", "worker"]

# An identity of this tenant speaks for others: its callers name theirs.
ANY_TENANT = "*"
# Of a file: inode, size, time of its last change.
Stamp = tuple[int, int, int]

# How long a changed file may go unseen.
_LOOK_NS = 1_000_000_000
_MOST_BYTES = 1 << 20
# So much of a digest finds those that may be it.
_PREFIX = 8
# libyaml's own parser is ten times as fast, where it was built.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_STRICT = ConfigDict(extra="forbid", strict=True)

Name = Annotated[str, Field(min_length=1, max_length=64)]
CertificateName = Annotated[str, Field(min_length=1, max_length=256)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class IdentityFault(OSError):
    """The file of identities cannot be used; says where and why, never what a hash is."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who calls: `name` for logs, the `tenant` that is charged, and what it may do."""

    name: str
    tenant: str
    roles: frozenset[str]
    rate: Rate = field(default_factory=Rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One identity as the file has it."""

    __pydantic_config__ = _STRICT

    name: Name
    tenant: Annotated[str, Field(max_length=64)] = ""
    roles: Annotated[list[Role], Field(min_length=1)]
    token_sha256: list[Sha256] = field(default_factory=list)
    certificates: list[CertificateName] = field(default_factory=list)
    requests_per_s: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] = 0.0
    burst: Annotated[int, Field(ge=0, le=1_000_000)] = 0


@dataclass(frozen=True, slots=True)
class _Document:
    __pydantic_config__ = _STRICT

    identities: list[_Entry]


_ADAPTER: TypeAdapter[_Document] = TypeAdapter(_Document)


@dataclass(frozen=True, slots=True)
class Identities:
    """Everybody known, by the beginning of a token's sha256 and by a name in a certificate."""

    tokens: Mapping[bytes, tuple[tuple[bytes, Identity], ...]]
    certificates: Mapping[str, Identity]

    def of_token(self, token: str) -> Identity | None:
        """Whose token it is."""
        digest = token_digest(token)
        for known, identity in self.tokens.get(digest[:_PREFIX], ()):
            if hmac.compare_digest(known, digest):
                return identity
        return None

    def of_certificate(self, names: Iterable[str]) -> Identity | None:
        """Who has a certificate with one of these names."""
        for name in names:
            identity = self.certificates.get(name)
            if identity is not None:
                return identity
        return None


def token_digest(token: str) -> bytes:
    """What the file keeps of a token, as bytes.

    Tokens are drawn at random and long, so a plain hash gives nothing away.
    """
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def read_identities(text: bytes) -> Identities:
    """The identities of a file's text; raises IdentityFault."""
    if len(text) > _MOST_BYTES:
        raise IdentityFault(f"has {len(text)} bytes; at most {_MOST_BYTES}")
    try:
        document = _ADAPTER.validate_json(json.dumps(_parsed(text), default=str))
    except (yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "the document"
            raise IdentityFault(f"{where}: {first['msg']}") from None
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise IdentityFault(f"{where}is not YAML that can be read here") from None
    return _checked(document.identities)


def _parsed(text: bytes) -> object:
    # None are needed, and they can name a billion values in a line.
    if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=_LOADER)):
        raise yaml.YAMLError("aliases are not accepted")
    return yaml.load(text, Loader=_LOADER)


def _checked(entries: list[_Entry]) -> Identities:
    tokens: dict[bytes, Identity] = {}
    certificates: dict[str, Identity] = {}
    names: set[str] = set()
    for entry in entries:
        if entry.name in names:
            raise IdentityFault(f"identity {entry.name!r} appears twice")
        names.add(entry.name)
        if not (entry.token_sha256 or entry.certificates):
            raise IdentityFault(
                f"identity {entry.name!r} has neither token_sha256 nor certificates"
            )
        if "infer" in entry.roles and not entry.tenant:
            raise IdentityFault(
                f"identity {entry.name!r} has the role infer and no tenant to charge "
                f"({ANY_TENANT!r} lets it name tenants)"
            )
        burst = entry.burst or max(1, round(entry.requests_per_s))
        identity = Identity(
            entry.name, entry.tenant, frozenset(entry.roles), Rate(entry.requests_per_s, burst)
        )
        for text in entry.token_sha256:
            if tokens.setdefault(bytes.fromhex(text), identity) is not identity:
                raise IdentityFault(f"identity {entry.name!r} has a token of another one")
        for name in entry.certificates:
            if certificates.setdefault(name, identity) is not identity:
                raise IdentityFault(f"identity {entry.name!r} has certificate {name!r} of another")
    near: dict[bytes, tuple[tuple[bytes, Identity], ...]] = {}
    for digest, identity in tokens.items():
        near[digest[:_PREFIX]] = (*near.get(digest[:_PREFIX], ()), (digest, identity))
    return Identities(near, certificates)


class IdentityFile:
    """A file of identities that is read again when it changes; lives on one thread.

    `on_change` hears whether a changed file was taken, with the reason when it was not.
    """

    def __init__(
        self, path: Path, *, now_ns: Callable[[], int], on_change: Callable[[str], None]
    ) -> None:
        """Reads the file; raises IdentityFault."""
        self._path = path
        self._now_ns = now_ns
        self._on_change = on_change
        self._next_ns = now_ns() + _LOOK_NS
        # Why the file was not taken when it was last looked at.
        self._fault = ""
        self._stamp: Stamp | None = self._stamped()
        self._identities = self._read()

    def current(self) -> Identities:
        """Everybody known now; a file that became unusable changes nothing."""
        now = self._now_ns()
        if now >= self._next_ns:
            self._next_ns = now + _LOOK_NS
            self._look()
        return self._identities

    def _look(self) -> None:
        try:
            stamp = self._stamped()
            if stamp == self._stamp:
                return
            self._stamp = stamp
            self._identities = self._read()
        except IdentityFault as fault:
            self._keep(str(fault))
            return
        self._fault = ""
        log.info("identities were read again: %s", self._path)
        self._on_change("")

    def _keep(self, fault: str) -> None:
        """Say once why the file is not taken, however often it is looked at."""
        if fault == self._fault:
            return
        self._fault = fault
        log.warning("changed identities are not taken: %s", fault)
        self._on_change(fault)

    def _stamped(self) -> Stamp:
        try:
            status = self._path.stat()
        except OSError as error:
            # When it is there again it is read, whatever it looks like.
            self._stamp = None
            raise self._unreadable(error) from None
        return status.st_ino, status.st_size, status.st_mtime_ns

    def _read(self) -> Identities:
        try:
            return read_identities(self._path.read_bytes())
        except IdentityFault as fault:
            raise IdentityFault(f"identities: {self._path}: {fault}") from None
        except OSError as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: OSError) -> IdentityFault:
        return IdentityFault(f"identities: cannot read {self._path}: {error.strerror}")
