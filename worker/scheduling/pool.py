"""The scheduler's blocks: ledger, prefix cache, and the changes the arena is told of."""

from __future__ import annotations

from collections.abc import Sequence

from worker.scheduling.block_map import uses_of
from worker.scheduling.blocks import BLOCK_TOKENS, BlockLedger, LedgerSnapshot, OutOfBlocks
from worker.scheduling.prefix import PrefixCache
from worker.scheduling.records import ArenaUse, BlockChange, Change


class BlockPool:
    """Gives and takes blocks, remembers prefixes, and logs every change in order.

    A cached block has one reference of the cache and one of each sequence that uses it; it is
    evicted when its block is wanted and only the cache has it. Not thread-safe.
    """

    def __init__(self, blocks: int, *, prefix_cache: bool, account_share: float = 1.0) -> None:
        self._ledger = BlockLedger(blocks)
        self._cache = PrefixCache()
        self.caches = prefix_cache
        self._changes: list[BlockChange] = []
        self._owners: dict[str, int] = {}
        self._last_owner = 0
        self._evictable = 0
        self.total = blocks
        # Cached blocks that one of several accounts may have.
        self.account_most = max(1, int(account_share * blocks))

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return self._ledger.free

    @property
    def evictable(self) -> int:
        """Blocks that only the prefix cache holds."""
        return self._evictable

    @property
    def available(self) -> int:
        """Blocks that `take` can give."""
        return self._ledger.free + self._evictable

    @property
    def tenants(self) -> int:
        """Tenants that have a number."""
        return len(self._owners)

    @property
    def pending(self) -> int:
        """Changes that were not drained."""
        return len(self._changes)

    def take(self, tenant: str, count: int) -> tuple[int, ...]:
        """`count` blocks for the tenant, evicting cached ones; raises OutOfBlocks, taking none."""
        if count < 1:
            return ()
        if count > self.available:
            raise OutOfBlocks(count, self.available)
        lacking = count - self._ledger.free
        if lacking > 0:
            evicted = self._cache.evict(lacking, self._unused)
            self._evictable -= len(evicted)
            self._ledger.release(evicted)
            self._log(Change.RELEASE, evicted)
        blocks = self._ledger.allocate(count)
        self._log(Change.ACQUIRE, blocks, self._owner(tenant))
        return blocks

    def give_back(self, blocks: Sequence[int]) -> None:
        """Drops one reference of each; cached blocks stay for those who come later."""
        if not blocks:
            return
        self._ledger.release(blocks)
        self._log(Change.RELEASE, blocks)
        for block in blocks:
            if block in self._cache and self._unused(block):
                self._evictable += 1
                self._cache.rest(block)

    def match(self, tenant: str, tokens: Sequence[int]) -> list[int]:
        """Cached blocks that begin with these tokens; the last token is never among theirs.

        The last token's logits are wanted, so it is computed whatever is cached.
        """
        if not self.caches:
            return []
        return self._cache.find(tenant, tokens, (len(tokens) - 1) // BLOCK_TOKENS)

    def share(self, blocks: Sequence[int]) -> None:
        """Adds a reference to each of these cached blocks."""
        if not blocks:
            return
        self._evictable -= sum(1 for b in blocks if self._unused(b))
        self._ledger.retain(blocks)
        self._log(Change.RETAIN, blocks)
        self._cache.touch(blocks)

    def publish(
        self,
        tenant: str,
        before: Sequence[int],
        tokens: tuple[int, ...],
        block: int,
        *,
        account: str = "",
        most: int = 0,
    ) -> int:
        """Caches a full block that a sequence has computed after `before`.

        Returns the block the sequence goes on with: when the same was cached already, the
        sequence gives its own back and shares that one. Of one `account` at most `most` blocks are
        cached (0: any number): the least lately used ones that nobody holds make room, and when
        there are none nothing is cached and -1 returned.
        """
        if not self.caches:
            return block
        if most and not self._room_for(account, most, tenant, before, tokens):
            return -1
        cached = self._cache.publish(tenant, before, tokens, block, account)
        if cached == block:
            self._ledger.retain((block,))
            self._log(Change.RETAIN, (block,))
        else:
            self.share((cached,))
            self.give_back((block,))
        return cached

    def _room_for(
        self,
        account: str,
        most: int,
        tenant: str,
        before: Sequence[int],
        tokens: tuple[int, ...],
    ) -> bool:
        """Whether the account may have one more cached block, for which its own make room."""
        cache = self._cache
        over = cache.count(account) + 1 - most
        if over <= 0 or cache.has(tenant, before, tokens):
            return True
        evicted = cache.evict(over, self._unused, account)
        if evicted:
            self._evictable -= len(evicted)
            self._ledger.release(evicted)
            self._log(Change.RELEASE, evicted)
        return len(evicted) == over

    def drain(self) -> tuple[BlockChange, ...]:
        """The changes since the last drain, in the order the arena must make them."""
        changes, self._changes = tuple(self._changes), []
        return changes

    def forget_tenants(self, living: set[str]) -> None:
        """Drops the numbers of tenants that neither live nor have anything cached."""
        for tenant in [t for t in self._owners if t not in living and not self._cache.holds(t)]:
            del self._owners[tenant]

    def snapshot(self) -> LedgerSnapshot:
        """The ledger as a value."""
        return self._ledger.snapshot()

    def uses(self) -> bytes:
        """What each block is for, one byte each; see `BlockUse`."""
        return uses_of(self._ledger.counts(), self._cache.blocks())

    def cached(self) -> tuple[tuple[int, str], ...]:
        """Each cached block with its tenant."""
        return self._cache.tenants()

    def references(self, block: int) -> int:
        """References to one block."""
        return self._ledger.references(block)

    def use(self) -> ArenaUse:
        """Blocks by what they are for; looks at each cached one."""
        cached: dict[str, int] = {}
        for block, tenant in self._cache.tenants():
            if self._unused(block):
                cached[tenant] = cached.get(tenant, 0) + 1
        held = self.total - self._ledger.free - sum(cached.values())
        return ArenaUse(held, cached, self._ledger.touched)

    def _unused(self, block: int) -> bool:
        return self._ledger.references(block) == 1

    def _owner(self, tenant: str) -> int:
        number = self._owners.get(tenant)
        if number is None:
            self._last_owner += 1
            number = self._owners[tenant] = self._last_owner
        return number

    def _log(self, kind: str, blocks: Sequence[int], owner: int = 0) -> None:
        self._changes.append(BlockChange(kind, tuple(blocks), owner))
