"""The look for company before a shared run, held against what the run would take."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controlplane.policy.batching import Member, Run, grow
from controlplane.policy.line import Line
from controlplane.policy.profiles import Candidate, VariantProfile, VariantTable
from controlplane.policy.records import Request, RequestClass, Shape

# Sharing pays up to nine tokens.
PROFILE = VariantProfile(s0_ns=3e5, s1_ns=3e5)
TABLE = VariantTable.build(
    [
        Candidate("slow", "words", 0.9, VariantProfile(s0_ns=1e6, s1_ns=1e6), 512, True),
        Candidate("fast", "words", 0.8, PROFILE, 512, True),
    ]
)
FAST = TABLE.numbers["fast"]
RUN = Run(PROFILE, 1.0, 0.07, 0.0, 0.0, 0.0, 1, 1.645, 1.0, fallback=True)


def shape(tokens: int) -> Shape:
    return Shape.of_lengths([tokens])


def queued(line: Line, number: int, tokens: int, eligible: tuple[int, ...]) -> Request:
    request = Request(
        id=number,
        model="m",
        klass=RequestClass(),
        shapes={"words": shape(tokens)},
        payload=None,
        arrived_ns=0,
        deadline_ns=10**15 + number,
        eligible=eligible,
    )
    assert line.push(request, line.nominal(request), eligible[0])
    return request


@given(
    st.lists(st.tuples(st.integers(1, 20), st.booleans()), max_size=40),
    st.integers(2, 16),
)
def test_nobody_is_found_exactly_where_nobody_would_join(
    waiting: list[tuple[int, bool]], limit: int
) -> None:
    line = Line(TABLE, 64, by_deadline=True)
    for number, (tokens, able) in enumerate(waiting):
        queued(line, number, tokens, (0, FAST) if able else (0,))
    seen = [shape(tokens) for tokens, able in waiting[: 2 * limit] if able]
    members = [Member(each, 10**14, 10**14, 1.0) for each in seen]
    joined = grow(Member(shape(1), 10**14, 10**14, 1.0), members, RUN, limit)
    assert line.has_company(FAST, limit) == bool(joined)


def test_an_empty_line_has_no_company() -> None:
    assert not Line(TABLE, 64, by_deadline=True).has_company(FAST, 16)
