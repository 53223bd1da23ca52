"""The prefix cache: full blocks of tokens by what stands before them, tenant by tenant.

A chain of blocks is found by its tokens themselves, not by a hash of them: no two prompts can
collide. Each tenant has a tree of its own, so no other tenant's block is ever reached.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence

from worker.scheduling.blocks import BLOCK_TOKENS

_SPARE = 64


class _Node:
    """One cached block of an account: 16 tokens after those of `parent`."""

    def __init__(
        self, parent: _Node | None, tokens: tuple[int, ...], block: int, account: str = ""
    ) -> None:
        self.parent = parent
        self.tokens = tokens
        self.block = block
        self.account = account
        self.used = 0
        self.children: dict[tuple[int, ...], _Node] = {}


class PrefixCache:
    """Which block holds which prefix. It counts no references: its owner does, in the ledger.

    Whoever holds a block holds those before it in the chain, so a block nobody uses has none
    after it that anybody uses, and blocks are evicted from the ends of chains. Each is counted for
    the account that left it.
    """

    def __init__(self) -> None:
        self._roots: dict[str, _Node] = {}
        self._nodes: dict[int, tuple[str, _Node]] = {}
        self._clock = 0
        self._counts: dict[str, int] = {}
        # By account a heap of (last use, block); entries that are out of date are skipped.
        self._resting: dict[str, list[tuple[int, int]]] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, block: int) -> bool:
        return block in self._nodes

    def count(self, account: str) -> int:
        """Cached blocks that the account left."""
        return self._counts.get(account, 0)

    def find(self, tenant: str, tokens: Sequence[int], most: int) -> list[int]:
        """The blocks of the longest cached prefix, of at most `most` blocks, first one first."""
        node = self._roots.get(tenant)
        found: list[int] = []
        while node is not None and len(found) < most:
            begin = len(found) * BLOCK_TOKENS
            node = node.children.get(tuple(tokens[begin : begin + BLOCK_TOKENS]))
            if node is not None:
                found.append(node.block)
        return found

    def has(self, tenant: str, before: Sequence[int], tokens: tuple[int, ...]) -> bool:
        """Whether these 16 tokens are cached after the cached chain `before`."""
        parent = self._nodes[before[-1]][1] if before else self._roots.get(tenant)
        return parent is not None and tokens in parent.children

    def touch(self, blocks: Sequence[int]) -> None:
        """Marks cached blocks as used now; those at the end of the chain as used less lately."""
        for block in reversed(blocks):
            self._clock += 1
            self._nodes[block][1].used = self._clock

    def publish(
        self,
        tenant: str,
        before: Sequence[int],
        tokens: tuple[int, ...],
        block: int,
        account: str = "",
    ) -> int:
        """Caches `block` with these 16 tokens after the cached chain `before`.

        Returns the block that is cached for them, which is another one when somebody was first.
        """
        if before:
            parent = self._nodes[before[-1]][1]
        else:
            parent = self._roots.setdefault(tenant, _Node(None, (), -1))
        known = parent.children.get(tokens)
        if known is not None:
            return known.block
        node = _Node(parent, tokens, block, account)
        self._clock += 1
        node.used = self._clock
        parent.children[tokens] = node
        self._nodes[block] = (tenant, node)
        self._counts[account] = self._counts.get(account, 0) + 1
        return block

    def rest(self, block: int) -> None:
        """Nobody uses this cached block any more: it may be evicted."""
        node = self._nodes[block][1]
        resting = self._resting.setdefault(node.account, [])
        heapq.heappush(resting, (node.used, block))
        if len(resting) > 2 * self._counts[node.account] + _SPARE:
            kept = sorted({entry for entry in resting if self._current(entry)})
            self._resting[node.account] = kept

    def evict(
        self, count: int, unused: Callable[[int], bool], account: str | None = None
    ) -> list[int]:
        """Forgets up to `count` `unused` blocks, of chains' ends the least lately used first.

        Those of one `account`, or of all (None).
        """
        taken: list[int] = []
        while len(taken) < count:
            resting = self._oldest(account)
            if resting is None:
                break
            entry = heapq.heappop(resting)
            # What is used again rests again; what has a block after it, when that one goes.
            if not self._current(entry) or not unused(entry[1]):
                continue
            if self._nodes[entry[1]][1].children:
                continue
            parent = self._forget(entry[1])
            taken.append(entry[1])
            if parent is not None and not parent.children and unused(parent.block):
                again = self._resting.setdefault(parent.account, [])
                heapq.heappush(again, (parent.used, parent.block))
        return taken

    def _oldest(self, account: str | None) -> list[tuple[int, int]] | None:
        """The heap whose first entry is the least lately used; None when all are empty."""
        if account is not None:
            return self._resting.get(account) or None
        best: list[tuple[int, int]] | None = None
        for resting in self._resting.values():
            if resting and (best is None or resting[0] < best[0]):
                best = resting
        return best

    def _current(self, entry: tuple[int, int]) -> bool:
        used, block = entry
        return block in self._nodes and self._nodes[block][1].used == used

    def tenants(self) -> tuple[tuple[int, str], ...]:
        """Each cached block with its tenant."""
        return tuple((block, tenant) for block, (tenant, _) in self._nodes.items())

    def blocks(self) -> Collection[int]:
        """Every cached block; to be looked at before anything changes."""
        return self._nodes.keys()

    def holds(self, tenant: str) -> bool:
        """Whether anything of this tenant is cached."""
        return tenant in self._roots

    def _forget(self, block: int) -> _Node | None:
        tenant, node = self._nodes.pop(block)
        account = node.account
        self._counts[account] -= 1
        if not self._counts[account]:
            del self._counts[account]
            self._resting.pop(account, None)
        parent = node.parent
        assert parent is not None
        del parent.children[node.tokens]
        if parent.parent is None and parent.block < 0:
            if not parent.children:
                del self._roots[tenant]
            return None
        return parent
