"""The high watermark (CORRECTNESS.md): the least end over the in-sync replicas, and never back."""

from hypothesis import given
from hypothesis import strategies as st

from kbus.core.replica import advanced_high_watermark
from kbus.types import Offset

offsets = st.integers(0, 100).map(Offset)


@given(offsets, offsets, st.lists(offsets, max_size=4), st.booleans())
def test_the_high_watermark_never_moves_back(
    current: Offset, leader_end: Offset, ends: list[Offset], enough: bool
) -> None:
    assert advanced_high_watermark(current, leader_end, ends, enough_in_sync=enough) >= current


@given(offsets, offsets, st.lists(offsets, max_size=4))
def test_it_advances_to_what_every_in_sync_replica_has_and_no_further(
    current: Offset, leader_end: Offset, ends: list[Offset]
) -> None:
    advanced = advanced_high_watermark(current, leader_end, ends, enough_in_sync=True)
    if advanced > current:
        assert advanced <= leader_end
        assert all(advanced <= end for end in ends)
        assert advanced in (leader_end, *ends)


@given(offsets, offsets, st.lists(offsets, max_size=4))
def test_it_stays_while_too_few_are_in_sync(current: Offset, leader_end: Offset, ends: list[Offset]) -> None:
    assert advanced_high_watermark(current, leader_end, ends, enough_in_sync=False) == current


def test_a_leader_alone_commits_what_it_has() -> None:
    assert advanced_high_watermark(Offset(3), Offset(7), (), enough_in_sync=True) == 7
