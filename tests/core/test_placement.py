"""Where replicas go: evenly, and nowhere twice."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbus.core.placement import check_manual_assignment, place_replicas
from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.types import BrokerId


def brokers(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(number) for number in numbers)


@st.composite
def placements(draw: st.DrawFn) -> tuple[list[BrokerId], int, int, int, int]:
    live = draw(st.lists(st.integers(0, 1000).map(BrokerId), min_size=1, max_size=8, unique=True))
    return (
        live,
        draw(st.integers(1, 40)),
        draw(st.integers(1, len(live))),
        draw(st.integers(0, 20)),
        draw(st.integers(0, 20)),
    )


@given(placements())
def test_every_partition_has_its_replicas_on_brokers_of_their_own(
    placement: tuple[list[BrokerId], int, int, int, int],
) -> None:
    live, partitions, factor, first, start = placement
    assignment = place_replicas(
        live, partitions=partitions, replication_factor=factor, first_partition=first, start=start
    )
    assert sorted(assignment) == list(range(first, first + partitions))
    for replicas in assignment.values():
        assert len(replicas) == factor
        assert len(set(replicas)) == factor
        assert set(replicas) <= set(live)


@given(placements())
def test_leaders_are_spread_evenly(placement: tuple[list[BrokerId], int, int, int, int]) -> None:
    live, partitions, factor, first, start = placement
    assignment = place_replicas(
        live, partitions=partitions, replication_factor=factor, first_partition=first, start=start
    )
    leaders = Counter(dict.fromkeys(live, 0))
    leaders.update(replicas[0] for replicas in assignment.values())
    assert max(leaders.values()) - min(leaders.values()) <= 1


@given(st.integers(2, 6), st.integers(1, 4), st.integers(0, 5))
def test_replicas_are_spread_evenly_over_whole_rounds(count: int, rounds: int, start: int) -> None:
    """Over count × (count − 1) partitions every broker follows every other equally often."""
    live = [BrokerId(number) for number in range(count)]
    partitions = rounds * count * (count - 1)
    assignment = place_replicas(live, partitions=partitions, replication_factor=2, start=start)
    pairs = Counter(assignment.values())
    assert set(pairs.values()) == {rounds}
    assert len(pairs) == count * (count - 1)


@given(placements(), st.integers(1, 10))
def test_partitions_added_later_go_where_they_would_have_gone_at_once(
    placement: tuple[list[BrokerId], int, int, int, int], more: int
) -> None:
    live, partitions, factor, _, start = placement
    at_once = place_replicas(live, partitions=partitions + more, replication_factor=factor, start=start)
    later = place_replicas(
        live, partitions=more, replication_factor=factor, first_partition=partitions, start=start
    )
    assert {**at_once, **later} == at_once


@pytest.mark.parametrize("factor", [0, -1, 3, 32767])
def test_a_factor_that_the_brokers_cannot_give_is_refused(factor: int) -> None:
    with pytest.raises(KafkaError) as refused:
        place_replicas(brokers(1, 2), partitions=1, replication_factor=factor)
    assert refused.value.code is ErrorCode.invalid_replication_factor


def test_no_brokers_can_hold_nothing() -> None:
    with pytest.raises(KafkaError):
        place_replicas([], partitions=1, replication_factor=1)


# ---- by hand


def test_an_assignment_by_hand_is_taken() -> None:
    check_manual_assignment({0: brokers(1, 2), 1: brokers(2, 1)}, brokers(1, 2, 3))
    check_manual_assignment({4: brokers(1), 5: brokers(2)}, brokers(1, 2), first_partition=4)


@pytest.mark.parametrize(
    ("assignment", "first"),
    [
        ({1: brokers(1)}, 0),
        ({0: brokers(1), 2: brokers(1)}, 0),
        ({-1: brokers(1), 0: brokers(1)}, 0),
        ({0: brokers(1)}, 1),
        ({0: ()}, 0),
        ({0: brokers(1), 1: ()}, 0),
        ({0: brokers(1, 2), 1: brokers(1)}, 0),
        ({0: brokers(1, 1)}, 0),
        ({0: brokers(9)}, 0),
        ({0: brokers(1, 9)}, 0),
    ],
)
def test_an_assignment_by_hand_that_cannot_be_is_refused(
    assignment: dict[int, tuple[BrokerId, ...]], first: int
) -> None:
    with pytest.raises(KafkaError) as refused:
        check_manual_assignment(assignment, brokers(1, 2), first_partition=first)
    assert refused.value.code is ErrorCode.invalid_replica_assignment
    assert refused.value.message
