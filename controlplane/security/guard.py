"""Who a caller is and what it may do, whatever carried the call."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from controlplane.errors import Forbidden, Refused, Unauthenticated
from controlplane.policy.rates import TokenBucket
from controlplane.security.identities import ANY_TENANT, Identities, Identity, IdentityFile
from protos.audit import Audit

INFER = frozenset({"infer"})
OPERATE = frozenset({"operate"})
WORKER = frozenset({"worker"})
READ = INFER | OPERATE
# What anybody may ask: whether the process lives, so that probes need no secret.
ANYBODY: frozenset[str] = frozenset()

_SCHEME = "bearer "
_MS = 1_000_000


class Guard:
    """Recognises callers and lets them do what their roles allow. Lives on the event loop."""

    def __init__(self, file: IdentityFile, audit: Audit, now_ns: Callable[[], int]) -> None:
        self._file = file
        self.audit = audit
        self._now_ns = now_ns
        self._buckets: dict[str, TokenBucket] = {}

    def known(self) -> Identities:
        """Everybody known now: the same object until the identities have changed."""
        return self._file.current()

    def admit(
        self,
        what: str,
        accepted: frozenset[str],
        authorization: str,
        names: Callable[[], Iterable[str]],
        peer: str,
    ) -> Identity:
        """Who calls, when that has one of the `accepted` roles.

        `authorization` is the header of that name, empty without one; only then are the `names`
        in the caller's certificate asked for. Raises Unauthenticated or Forbidden, and
        leaves an audit line.
        """
        known = self.known()
        if authorization:
            identity = None
            if authorization[: len(_SCHEME)].lower() == _SCHEME:
                identity = known.of_token(authorization[len(_SCHEME) :].strip())
            if identity is None:
                self.audit.refused(what, who="", outcome="unknown token", peer=peer)
                raise Unauthenticated("the bearer token is not known here")
        else:
            identity = known.of_certificate(names())
            if identity is None:
                self.audit.refused(what, who="", outcome="unauthenticated", peer=peer)
                raise Unauthenticated(
                    "say who calls: authorization: Bearer TOKEN, or a client certificate that is "
                    "known here"
                )
        if not accepted & identity.roles:
            self.audit.refused(what, who=identity.name, outcome="wrong role", peer=peer)
            needed = " or ".join(sorted(accepted))
            raise Forbidden(f"{identity.name} may not do this; it takes the role {needed}")
        return identity

    def spend(self, identity: Identity) -> None:
        """Count one request of an identity; raises Refused when it sends too many."""
        if not identity.rate.bounded:
            return
        bucket = self._buckets.get(identity.name)
        if bucket is None or bucket.rate != identity.rate:
            bucket = self._buckets[identity.name] = TokenBucket(identity.rate, bucket)
        wait_ns = bucket.take(self._now_ns())
        if wait_ns:
            raise Refused(
                f"{identity.name} may send {identity.rate.per_second:g} requests a second "
                f"(at most {identity.rate.burst} at once)",
                max(1, -(-wait_ns // _MS)),
            )


class Standing:
    """A caller of a call that goes on: who it is, and whether it still may.

    `identity` is who it was when it was last looked at.
    """

    __slots__ = ("_ask", "_guard", "_known", "identity")

    def __init__(self, guard: Guard, ask: Callable[[], Identity]) -> None:
        """`ask` is `Guard.admit` with what the caller said; raises what it raises."""
        self._guard = guard
        self._ask = ask
        self._known = guard.known()
        self.identity = ask()

    def check(self) -> None:
        """Raises Unauthenticated or Forbidden once the caller is known no more, or may no more."""
        known = self._guard.known()
        if known is not self._known:
            self.identity = self._ask()
            self._known = known


def tenant_of(identity: Identity, claimed: str) -> str:
    """The tenant that a request is charged to; raises Forbidden when another one is named."""
    if identity.tenant == ANY_TENANT:
        return claimed
    if claimed and claimed != identity.tenant:
        raise Forbidden(f"{identity.name} may not name another tenant than its own")
    return identity.tenant
