"""What tenants' terms say of generations: models, lengths, how many are open, KV blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from controlplane.errors import ContextOverflow, InvalidRequest, Refused, Unsatisfiable
from controlplane.generation.records import GenerationLimits
from controlplane.policy.records import RequestClass
from controlplane.policy.tenancy.accounts import Account
from controlplane.policy.tenancy.blocks import (
    KV_BLOCK_TOKENS,
    Verdict,
    hold_verdict,
    turn_room,
    turn_weights,
)
from controlplane.policy.tenancy.tenancy import Tenancy
from controlplane.wording import counted

# Whoever is not configured is one account; no tenant can be called so.
_OTHERS = "(others)"


class _Hold(NamedTuple):
    account: Account
    blocks: int


class Quotas:
    """Keeps what each open generation holds of its tenant's bounds. Lives on the event loop.

    Without a tenancy nothing is bounded and nothing kept.
    """

    def __init__(self) -> None:
        self._tenancy: Tenancy | None = None
        self._holds: dict[int, _Hold] = {}
        # By account: its share of decode workers' steps, over that of a usual one.
        self.weights: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._holds)

    def set_tenancy(self, tenancy: Tenancy | None) -> None:
        """Go on under these terms; what is open stays counted unless there are no tenants now."""
        self._tenancy = tenancy
        self.weights = {}
        if tenancy is None:
            self._holds.clear()
            return
        weights = turn_weights(tenancy.accounts)
        self.weights = {name or _OTHERS: weight for name, weight in weights.items()}

    def authorise(self, klass: RequestClass, model: str) -> None:
        """Raises Forbidden for a model that the tenant may not use."""
        if self._tenancy is not None:
            self._tenancy.authorise(klass, model)

    def prefix_scope(self, klass: RequestClass, number: int) -> str:
        """Whose cached prefixes the generation may use and leaves its own to.

        Raises InvalidRequest for a privacy class that is not configured.
        """
        if self._tenancy is None:
            return klass.tenant
        return self._tenancy.prefix_scope(klass, number)

    def account(self, klass: RequestClass) -> str:
        """Who workers serve it for, in turn with others; empty without tenants."""
        if self._tenancy is None:
            return ""
        return self._tenancy.account(klass.tenant).name or _OTHERS

    def room(self, klass: RequestClass, total_blocks: int) -> float:
        """The part of decode workers' steps that its tenant may fill; 1 without tenants."""
        tenancy = self._tenancy
        if tenancy is None:
            return 1.0
        account = tenancy.account(klass.tenant)
        return turn_room(account, tenancy.others(account), total_blocks)

    def bounded(
        self, klass: RequestClass, prompt_tokens: int, limits: GenerationLimits
    ) -> GenerationLimits:
        """The limits within the tenant's; an answer without a longest length gets the tenant's.

        Raises InvalidRequest for a longer answer than the tenant may ask for, ContextOverflow
        for a longer sequence.
        """
        if self._tenancy is None:
            return limits
        account = self._tenancy.account(klass.tenant)
        config = account.config
        most = config.max_output_tokens
        if most and limits.max_tokens > most:
            raise InvalidRequest(
                f"max_tokens is {limits.max_tokens}; {_who(account)} may ask for {most}"
            )
        if config.max_context_tokens:
            left = config.max_context_tokens - prompt_tokens
            if left < max(1, limits.max_tokens):
                raise ContextOverflow(
                    f"the prompt has {counted(prompt_tokens, 'token')} and max_tokens is "
                    f"{limits.max_tokens}; "
                    f"sequences of {_who(account)} have {config.max_context_tokens} "
                    "tokens at most"
                )
            most = min(most, left) if most else left
        return replace(limits, max_tokens=limits.max_tokens or most)

    def take(
        self, number: int, klass: RequestClass, tokens: int, total_blocks: int, retry_ms: int
    ) -> None:
        """Hold what a generation of so many tokens may come to need of `total_blocks`.

        `total_blocks` is 0 while no worker has said. Raises Refused (not now) or Unsatisfiable
        (never under these terms); nothing is held then.
        """
        tenancy = self._tenancy
        if tenancy is None:
            return
        account = tenancy.account(klass.tenant)
        needed = -(-tokens // KV_BLOCK_TOKENS)
        verdict, most = hold_verdict(account, tenancy.others(account), needed, total_blocks)
        if verdict is not Verdict.HOLDS:
            account.refused += 1
        who = _who(account)
        if verdict is Verdict.NEVER:
            raise Unsatisfiable(f"{needed} KV blocks may be needed, {who} may hold {most}")
        if verdict is Verdict.TOO_MANY:
            raise Refused(f"{who} has {account.open} generations open, as many as it may", retry_ms)
        if verdict is Verdict.TOO_MUCH:
            raise Refused(
                f"{who} holds {account.held_blocks} of the {most} KV blocks that it may hold now, "
                f"and may need {needed} more",
                retry_ms,
            )
        account.open += 1
        account.held_blocks += needed
        self._holds[number] = _Hold(account, needed)

    def release(self, number: int, live_token_ms: int = 0) -> None:
        """A generation ended, however it did; may be repeated."""
        hold = self._holds.pop(number, None)
        if hold is None:
            return
        account = hold.account.current()
        account.open -= 1
        account.held_blocks -= hold.blocks
        account.held_token_ms += live_token_ms


def _who(account: Account) -> str:
    """Whose account it is, for an error: callers without terms of their own share one."""
    return f"tenant {account.name!r}" if account.name else "everybody who is not configured"
