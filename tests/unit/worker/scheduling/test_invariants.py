"""Every fault of a snapshot is found by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from worker.scheduling.blocks import LedgerSnapshot
from worker.scheduling.invariants import violations
from worker.scheduling.records import SchedulerSnapshot, SequenceView, State

_VIEW = SequenceView(
    sequence_id=7,
    tenant="a",
    state=State.DECODING,
    prompt_tokens=20,
    length=25,
    limit=9,
    computed=24,
    blocks=(0, 1),
    passed_over=0,
    idle_steps=0,
)
_SOUND = SchedulerSnapshot(
    ledger=LedgerSnapshot((2, 1, 0), (2,)),
    sequences=(_VIEW,),
    cached=((0, "a"),),
    running=(7,),
    pending_changes=0,
    peak=1,
    pass_limit=3,
)


def test_a_sound_snapshot_has_none() -> None:
    assert violations(_SOUND) == []


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"state": State.DONE}, "is done and still here"),
        ({"state": State.WAITING}, "holds blocks while it waits"),
        ({"blocks": (0, 0)}, "holds a block twice"),
        ({"blocks": (0,)}, "has 24 tokens in 1 blocks"),
        ({"limit": 5}, "has all its tokens and goes on"),
        ({"computed": 25}, "has nothing to compute"),
        ({"computed": 20}, "decodes with 5 tokens outstanding"),
        ({"computed": 12}, "would write block 0, which others use"),
        ({"passed_over": 4}, "was passed over 4 times"),
        ({"idle_steps": 6}, "went without a part for 6 steps"),
        ({"tenant": "b"}, "block 0 is used by two tenants"),
        ({"blocks": (0, 2)}, "block 2 has 0 references, 1 are known"),
    ],
)
def test_faults_of_a_sequence(changes: dict[str, Any], found: str) -> None:
    broken = replace(_SOUND, sequences=(replace(_VIEW, **changes),))
    assert any(found in fault for fault in violations(broken))


def test_faults_of_the_whole() -> None:
    assert "sequence 8 runs and is gone" in violations(replace(_SOUND, running=(8,)))
    assert "a sequence is here twice" in violations(replace(_SOUND, sequences=(_VIEW, _VIEW)))
    leaked = replace(_SOUND, ledger=LedgerSnapshot((2, 1, 1), ()))
    assert violations(leaked) == ["block 2 has 1 references, 0 are known"]
