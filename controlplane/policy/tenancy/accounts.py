"""One tenant's account: what it has reserved, used and waits for. Pure; times in ns."""

from __future__ import annotations

import math

from controlplane.policy.door import DoorMargin
from controlplane.policy.tenancy.clocks import Clock, Peers
from controlplane.tenants import TenantConfig

# Whoever reserves nothing has this share of a core when everybody wants more than there is.
LEAST_SHARE = 0.01
# A bounded tenant may use this long's worth of its bound at once.
_WINDOW_NS = 1e9


class Section:
    """One request class of a tenant; classes that reserve nothing are one section together."""

    __slots__ = ("account", "clock", "name")

    def __init__(self, account: Account, name: str, share: float) -> None:
        self.account = account
        self.name = name
        self.clock = Clock(share)


class Account:
    """What one tenant is promised, and what it has had.

    `waiting_ns` is the uncorrected work it has queued, `in_flight_ns` what its runs were charged
    before they ended, `charged_ns` what ended runs took; `refused` counts what its own bounds
    kept out, `apart_ns` is what runs cost that could not be shared for privacy. `successor` goes on
    with what this one began, once the tenants' terms have changed.
    """

    __slots__ = ("_level_at_ns", "_level_ns", "admitted", "apart_ns", "ceiling", "charged_ns",
                 "clock", "config", "door", "held_blocks", "held_token_ms", "in_flight_ns", "name",
                 "open", "peers", "refused", "sections", "successor", "waiting_ns")  # fmt: skip

    def __init__(self, name: str, config: TenantConfig) -> None:
        self.name = name
        self.config = config
        self.successor: Account | None = None
        self.clock = Clock(max(config.cpu_ms_per_s / 1000.0, LEAST_SHARE))
        self.peers = Peers()
        self.door = DoorMargin()
        rest = config.cpu_ms_per_s - sum(config.classes.values())
        self.sections: dict[str, Section] = {"": Section(self, "", max(rest / 1000.0, LEAST_SHARE))}
        for klass, share in config.classes.items():
            self.sections[klass] = Section(self, klass, share / 1000.0)
        # Cores that it may use at all.
        self.ceiling = math.inf
        if config.borrow_cpu_ms_per_s >= 0:
            bound = (config.cpu_ms_per_s + config.borrow_cpu_ms_per_s) / 1000.0
            self.ceiling = max(bound, LEAST_SHARE)
        self.admitted = self.refused = 0
        self.waiting_ns = 0
        self.in_flight_ns = self.charged_ns = self.apart_ns = 0
        self.open = self.held_blocks = self.held_token_ms = 0
        self._level_ns = 0.0
        self._level_at_ns = 0

    def current(self) -> Account:
        """The account that goes on with this one now: itself, or the last of its successors."""
        account = self
        while account.successor is not None:
            account = account.successor
        return account

    def section(self, klass: str) -> Section:
        """The section of a request class."""
        found = self.sections.get(klass)
        return self.sections[""] if found is None else found

    def serve(self, section: Section, work_ns: float) -> None:
        """Charge work to the tenant and its class; negative gives back."""
        self.clock.serve(work_ns)
        section.clock.serve(work_ns)
        if self.ceiling < math.inf:
            self._level_ns += work_ns

    def excess_ns(self, work_ns: float, now_ns: int) -> float:
        """Work by which one more request would break the bound on what is used, 0 if none."""
        if self.ceiling == math.inf:
            return 0.0
        drained = self.ceiling * (now_ns - self._level_at_ns)
        self._level_ns = max(0.0, self._level_ns - drained)
        self._level_at_ns = now_ns
        used = self._level_ns + self.waiting_ns
        # One request is always let in by an account at rest, however long it is.
        return max(0.0, used + work_ns - self.ceiling * _WINDOW_NS) if used > 0.0 else 0.0

    def carry(self, old: Account, floor: float) -> None:
        """Go on from an account under other terms; `floor` is that of the tenants' clocks."""
        self.clock.time = _carried(old.clock, self.clock, floor)
        for name, section in self.sections.items():
            before = old.sections.get(name)
            if before is not None:
                section.clock.time = _carried(before.clock, section.clock, old.peers.floor)
        self.peers.floor = old.peers.floor
        self.door = old.door
        self._level_ns, self._level_at_ns = old._level_ns, old._level_at_ns
        self.admitted += old.admitted
        self.refused += old.refused
        self.charged_ns += old.charged_ns
        self.apart_ns += old.apart_ns
        self.held_token_ms += old.held_token_ms


def _carried(old: Clock, new: Clock, floor: float) -> float:
    """The time at which a clock with another share is as much work ahead of the floor."""
    return floor + (old.time - floor) * old.share / new.share
