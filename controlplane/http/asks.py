"""What bodies and headers ask for together, in domain values."""

from __future__ import annotations

from controlplane.errors import NotFound
from controlplane.http.calls import PRIVACY_CLASS, REQUEST_CLASS, TENANT, Call
from controlplane.http.fields import Demands
from controlplane.http.problems import InvalidField, ModelNotFound
from controlplane.policy.records import Provenance, RequestClass
from controlplane.rpc.asks import LIMITS, MAX_NAME, explicit_deadline, request_class
from controlplane.rpc.catalogue import Catalogue, ModelView
from controlplane.security.guard import tenant_of
from controlplane.security.identities import ANY_TENANT

_MS = 1_000_000


def find(catalogue: Catalogue, name: str) -> ModelView:
    """The model called `name`; raises ModelNotFound, or Unavailable while no worker has it."""
    try:
        return catalogue.view(name)
    except NotFound as error:
        raise ModelNotFound(str(error)) from None


def class_asked(call: Call, body: Demands) -> RequestClass:
    """Who asks and what the answer must satisfy: the body's word, else the headers'.

    The tenant is that of the call's identity; without one the body's `tenant`, the header's, or
    `user`, in this order. Raises InvalidField for a name that is too long, Forbidden for the
    tenant of somebody else.
    """
    for field, value in (("user", body.user), (TENANT, call.headers.get(TENANT))):
        if value is not None and len(value) > MAX_NAME:
            raise InvalidField(field, f"has {len(value)} characters; at most {MAX_NAME}")
    prohibited = body.prohibited_variants or ()
    if len(prohibited) > LIMITS.names:
        raise InvalidField("prohibited_variants", f"has {len(prohibited)}; at most {LIMITS.names}")
    return RequestClass(
        tenant=_tenant(call, body),
        name=body.request_class or call.headers.get(REQUEST_CLASS, ""),
        privacy_class=body.privacy_class or call.headers.get(PRIVACY_CLASS, ""),
        minimum_quality=body.minimum_quality or 0.0,
        prohibited=frozenset(prohibited),
        variant=body.variant or "",
    )


def _tenant(call: Call, body: Demands) -> str:
    named = body.tenant or call.headers.get(TENANT) or ""
    if call.identity is None or call.identity.tenant == ANY_TENANT:
        return named or body.user or ""
    # What a caller calls its own user says nothing of who is charged.
    return tenant_of(call.identity, named)


def class_of(
    call: Call, body: Demands, view: ModelView, *, approximation: bool = True
) -> RequestClass:
    """The same, checked against a model, and one value for all callers that ask the same.

    Without `approximation` only the most accurate variant that may answer does.
    """
    asked = class_asked(call, body)
    return request_class(
        view,
        tenant=asked.tenant,
        name=asked.name,
        privacy_class=asked.privacy_class,
        minimum_quality=asked.minimum_quality,
        prohibited=tuple(sorted(asked.prohibited)),
        variant=asked.variant,
        approximation=approximation,
    )


def deadline_of(call: Call, body: Demands, usual_ms: int) -> int:
    """The explicit deadline in ns beside the header's, 0 without one.

    A client that says how long it waits for a whole answer never gets a later deadline than
    that, and no later one than `usual_ms`, what it would have without; `usual_ms` is 0 for
    answers in pieces.
    """
    asked = explicit_deadline(body.deadline_ms or 0, unit_ns=_MS, field="deadline_ms")
    patience = call.patience_ns()
    if not (patience and usual_ms):
        return asked
    if asked or call.deadline_ns():
        return min(asked or patience, patience)
    return min(usual_ms * _MS, patience)


def provenance_headers(provenance: Provenance, **more: object) -> dict[str, str]:
    """Which deployment answered, and why that one, as headers."""
    values = {
        "variant": provenance.variant,
        "model-version": provenance.model_version,
        "manifest-digest": provenance.manifest_digest,
        "reason": provenance.reason,
        "approximation": str(provenance.approximation).lower(),
        "quality": f"{provenance.quality:.4f}",
        "worker": provenance.worker_id,
        **more,
    }
    return {f"x-orchid-{name.replace('_', '-')}": _plain(str(v)) for name, v in values.items()}


def fingerprint(provenance: Provenance) -> str:
    """`system_fingerprint`: the first digits of the manifest, and the variant that answered."""
    digest = provenance.manifest_digest.rpartition(":")[2]
    return f"fp_{digest[:12]}_{provenance.variant}"


def _plain(value: str) -> str:
    """A value as a header may hold it: printable ASCII."""
    return ascii(value)[1:-1] if not (value.isascii() and value.isprintable()) else value
