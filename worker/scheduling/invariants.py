"""What must hold of a scheduler at every moment, checked on a snapshot."""

from __future__ import annotations

from collections import Counter

from worker.scheduling import blocks as ledger
from worker.scheduling.blocks import BLOCK_TOKENS, blocks_for
from worker.scheduling.records import SchedulerSnapshot, SequenceView, State


def violations(snapshot: SchedulerSnapshot) -> list[str]:
    """Everything that is wrong; empty when all is sound."""
    found = ledger.violations(snapshot.ledger)
    found += _references(snapshot)
    found += _tenants(snapshot)
    for view in snapshot.sequences:
        found += [f"sequence {view.sequence_id} {fault}" for fault in _faults(view, snapshot)]
    living = {view.sequence_id for view in snapshot.sequences}
    found += [f"sequence {i} runs and is gone" for i in snapshot.running if i not in living]
    if len(living) != len(snapshot.sequences):
        found.append("a sequence is here twice")
    return found


def _references(snapshot: SchedulerSnapshot) -> list[str]:
    """Every reference belongs to a sequence or the cache, and each of them has its own."""
    held = Counter(block for view in snapshot.sequences for block in view.blocks)
    held.update(block for block, _ in snapshot.cached)
    return [
        f"block {block} has {count} references, {held[block]} are known"
        for block, count in enumerate(snapshot.ledger.references)
        if count != held[block]
    ]


def _tenants(snapshot: SchedulerSnapshot) -> list[str]:
    """No block is used by two tenants."""
    tenants: dict[int, str] = dict(snapshot.cached)
    return [
        f"block {block} is used by two tenants"
        for view in snapshot.sequences
        for block in view.blocks
        if tenants.setdefault(block, view.tenant) != view.tenant
    ]


def _faults(view: SequenceView, snapshot: SchedulerSnapshot) -> list[str]:
    found = []
    resident = view.state in (State.PREFILLING, State.DECODING)
    if view.state == State.DONE:
        found.append("is done and still here")
    if not resident and (view.blocks or view.computed):
        found.append("holds blocks while it waits")
    if len(set(view.blocks)) != len(view.blocks):
        found.append("holds a block twice")
    if len(view.blocks) < blocks_for(view.computed):
        found.append(f"has {view.computed} tokens in {len(view.blocks)} blocks")
    if view.length - view.prompt_tokens >= view.limit:
        found.append("has all its tokens and goes on")
    if resident and view.computed >= view.length:
        found.append("has nothing to compute")
    if view.state == State.DECODING and view.computed != view.length - 1:
        found.append(f"decodes with {view.length - view.computed} tokens outstanding")
    found += [
        f"would write block {block}, which others use"
        for block in view.blocks[view.computed // BLOCK_TOKENS :]
        if snapshot.ledger.references[block] != 1
    ]
    if view.passed_over > snapshot.pass_limit:
        found.append(f"was passed over {view.passed_over} times")
    if view.idle_steps > snapshot.pass_limit + 2 * snapshot.peak:
        found.append(f"went without a part for {view.idle_steps} steps")
    return found
