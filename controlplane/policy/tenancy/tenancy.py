"""All tenants: who a request is charged to, what that tenant may do, and what it has had. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from controlplane.errors import Forbidden, InvalidRequest
from controlplane.policy.admission import Admission, Refusal
from controlplane.policy.parts import shares
from controlplane.policy.records import Request, RequestClass
from controlplane.policy.tenancy.accounts import Account, Section
from controlplane.policy.tenancy.clocks import Peers
from controlplane.tenants import TenantsConfig

# Under this name goes everybody who is not configured; nobody can be called so.
OTHERS = ""

_SHARED = ""


class Charge(NamedTuple):
    """What one request of a run was charged when it was sent, until the run ends."""

    account: Account
    klass: str
    work_ns: int


class Tenancy:
    """Accounts by name. One object serves every pool, so a tenant's work adds up over models.

    `version` changes whenever somebody is charged.
    """

    def __init__(self, config: TenantsConfig) -> None:
        self.config = config
        self.bound_ns = config.bound_ms * 1e6
        self.peers = Peers()
        self.version = 0
        self.accounts = {name: Account(name, terms) for name, terms in config.named.items()}
        self.accounts[OTHERS] = Account(OTHERS, config.others)

    def account(self, tenant: str) -> Account:
        """The account of a tenant, that of all others when it is not configured."""
        found = self.accounts.get(tenant)
        return self.accounts[OTHERS] if found is None else found

    def others(self, account: Account) -> list[Account]:
        """Every account but this one."""
        return [each for each in self.accounts.values() if each is not account]

    def section(self, klass: RequestClass) -> Section:
        """Where a request of this class waits."""
        return self.account(klass.tenant).section(klass.name)

    # --- what a request may do ------------------------------------------------------

    def authorise(self, klass: RequestClass, model: str) -> None:
        """Raises Forbidden for a model that the tenant may not use, InvalidRequest for a name
        that no tenant can have.
        """
        if "\n" in klass.tenant:
            raise InvalidRequest("a tenant's name has no line breaks")
        models = self.account(klass.tenant).config.models
        if models and model not in models:
            raise Forbidden(
                f"tenant {klass.tenant!r} may not use model {model!r}; "
                f"it may use: {', '.join(sorted(models))}"
            )

    def cell(self, klass: RequestClass, number: int) -> str:
        """Requests share a run only with those of the same cell; `number` is the request's id.

        Raises InvalidRequest for a privacy class that is not configured.
        """
        name = self._privacy(klass)
        return _SHARED if not name else _scope(self.config.privacy[name].batch, klass, name, number)

    def prefix_scope(self, klass: RequestClass, number: int) -> str:
        """Generations reuse each other's cached prefixes only within a scope.

        Raises InvalidRequest for a privacy class that is not configured.
        """
        name = self._privacy(klass)
        if not name:
            return klass.tenant
        return _scope(self.config.privacy[name].prefix, klass, name, number) or klass.tenant

    def refusal(self, section: Section, service_ns: float, now_ns: int) -> Admission | None:
        """Why the tenant's own bounds keep such a request out; None if they do not."""
        account = section.account
        config = account.config
        drain_ms = max(1, math.ceil(account.waiting_ns / account.clock.share / 1e6))
        reason = ""
        if config.max_queued and account.clock.waiting >= config.max_queued:
            reason = Refusal.TENANT_QUEUE
        elif (
            config.max_queued_ms
            and account.clock.waiting
            and account.waiting_ns + service_ns > config.max_queued_ms * 1e6
        ):
            reason = Refusal.TENANT_WORK
        else:
            excess = account.excess_ns(service_ns, now_ns)
            if excess > 0.0:
                reason = Refusal.TENANT_RATE
                drain_ms = max(1, math.ceil(excess / account.ceiling / 1e6))
        if not reason:
            return None
        account.refused += 1
        return Admission(False, reason, (), service_ns, drain_ms)

    # --- what stands before a request -----------------------------------------------

    def ahead_ns(
        self, account: Account, service_ns: float, waiting: Mapping[Account, tuple[float, int]]
    ) -> tuple[float, bool]:
        """Work that is served before a newcomer of this tenant is, by virtual time alone.

        `waiting` has the corrected work of those who wait. Everybody else is served until the
        time and the bound that the newcomer's tenant reaches with all it waits for, or until they
        have nothing left. The flag says whether the tenant is within the bound now, so that an
        early deadline counts.
        """
        own = waiting.get(account, (0.0, 0))[0]
        start = lowest = self.peers.start_of(account.clock)
        reach = start + (own + service_ns) / account.clock.share + self.bound_ns
        ahead = own
        for each, (work, _) in waiting.items():
            if each is not account:
                lowest = min(lowest, each.clock.time)
                ahead += min(work, max(0.0, (reach - each.clock.time) * each.clock.share))
        return ahead, start <= lowest + self.bound_ns

    # --- counting -------------------------------------------------------------------

    def enter(self, section: Section, nominal_ns: int) -> None:
        """A request waits."""
        account = section.account
        self.peers.enter(account.clock)
        account.peers.enter(section.clock)
        account.waiting_ns += nominal_ns

    def leave(self, section: Section, nominal_ns: int) -> None:
        """It waits no more."""
        account = section.account
        self.peers.leave(account.clock)
        account.peers.leave(section.clock)
        account.waiting_ns -= nominal_ns

    def charge(
        self, requests: Sequence[Request], sizes: Sequence[int], predicted_ns: int
    ) -> tuple[Charge, ...]:
        """Charge a run that is sent: each request by its size, what is predicted for all."""
        charges = []
        for request, work in zip(requests, shares(predicted_ns, sizes), strict=True):
            section = self.section(request.klass)
            section.account.serve(section, work)
            section.account.in_flight_ns += work
            charges.append(Charge(section.account, section.name, work))
        self.version += 1
        return tuple(charges)

    def settle(self, charges: Sequence[Charge], measured_ns: int) -> None:
        """The run ended: what it took, 0 for nothing, takes the place of what was charged."""
        parts = shares(measured_ns, [charge.work_ns for charge in charges])
        for charge, part in zip(charges, parts, strict=True):
            account = charge.account.current()
            account.serve(account.section(charge.klass), part - charge.work_ns)
            account.in_flight_ns -= charge.work_ns
            account.charged_ns += part
        self.version += 1

    def apart(self, klass: RequestClass, cost_ns: float) -> None:
        """A request could have shared a run but for its privacy; alone it costs so much more."""
        self.account(klass.tenant).apart_ns += int(cost_ns)

    def carried(self, config: TenantsConfig) -> Tenancy:
        """The same tenants under another configuration; nobody waits in it yet.

        What runs is charged to goes to the account of that name, or to that of all others.
        """
        fresh = Tenancy(config)
        fresh.peers.floor = self.peers.floor
        fresh.version = self.version + 1
        for name, old in self.accounts.items():
            account = old.successor = fresh.account(name)
            if account.name == name:
                account.carry(old, self.peers.floor)
            account.in_flight_ns += old.in_flight_ns
            account.open += old.open
            account.held_blocks += old.held_blocks
        return fresh

    def violations(self, queued: int, in_flight: int) -> list[str]:
        """What does not add up, given the requests that wait and those that workers hold."""
        waiting = sum(account.clock.waiting for account in self.accounts.values())
        found = []
        if waiting != queued:
            found.append(f"tenants count {waiting} queued, there are {queued}")
        for account in self.accounts.values():
            sections = sum(section.clock.waiting for section in account.sections.values())
            if sections != account.clock.waiting:
                found.append(f"tenant {account.name!r} counts {account.clock.waiting} queued, "
                             f"its classes {sections}")  # fmt: skip
            if not account.clock.waiting and account.waiting_ns:
                found.append(f"tenant {account.name!r} has no request and {account.waiting_ns} ns")
            if not in_flight and account.in_flight_ns:
                found.append(f"tenant {account.name!r} is charged {account.in_flight_ns} ns for "
                             "runs that nobody holds")  # fmt: skip
        return found

    def _privacy(self, klass: RequestClass) -> str:
        name = klass.privacy_class or self.account(klass.tenant).config.privacy
        if name and name not in self.config.privacy:
            known = ", ".join(sorted(self.config.privacy)) or "none"
            raise InvalidRequest(f"unknown privacy class {name!r}; configured: {known}")
        return name


def _scope(sharing: str, klass: RequestClass, privacy: str, number: int) -> str:
    """The name of those who may share: everybody is ""."""
    if sharing == "all":
        return _SHARED
    # No tenant's own name has this character in it, so no scope is a tenant's.
    scope = f"{klass.tenant}\n{privacy}"
    return scope if sharing == "class" else f"{scope}\n{number}"
