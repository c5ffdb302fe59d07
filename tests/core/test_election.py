"""Who leads a partition (CORRECTNESS.md, Elections)."""

from hypothesis import given
from hypothesis import strategies as st

from kbus.core.election import Elected, Recorded, elect_after_start, elect_offline
from kbus.types import NO_LEADER, BrokerId

A, B, C = (BrokerId(number) for number in (1, 2, 3))


def test_the_first_assigned_replica_that_is_alive_and_in_sync_leads() -> None:
    assert elect_offline((A, B, C), (B, C), (A, B, C), unclean_allowed=False) == Elected(B, (B, C))
    assert elect_offline((C, A, B), (A, B), (A, B), unclean_allowed=False) == Elected(A, (A, B))
    assert elect_offline((A, B, C), (A, B, C), (C, B), unclean_allowed=False) == Elected(B, (B, C))


def test_without_a_replica_in_sync_nobody_leads_unless_loss_is_allowed() -> None:
    assert elect_offline((A, B, C), (A,), (B, C), unclean_allowed=False) is None
    assert elect_offline((A, B, C), (A,), (C, B), unclean_allowed=True) == Elected(B, (B,))
    assert elect_offline((A, B, C), (A,), (), unclean_allowed=True) is None


def test_loss_is_not_taken_where_it_need_not_be() -> None:
    assert elect_offline((A, B), (B,), (A, B), unclean_allowed=True) == Elected(B, (B,))


replicas = st.lists(st.sampled_from([A, B, C]), min_size=1, unique=True)
subsets = st.sets(st.sampled_from([A, B, C]))


@given(replicas, subsets, subsets, st.booleans())
def test_a_leader_is_assigned_alive_and_in_its_own_in_sync_set(
    assignment: list[BrokerId], isr: set[BrokerId], live: set[BrokerId], unclean: bool
) -> None:
    in_sync = tuple(broker for broker in assignment if broker in isr)
    elected = elect_offline(assignment, in_sync, live, unclean_allowed=unclean)
    if elected is None:
        assert not set(in_sync) & live
        assert not unclean or not set(assignment) & live
        return
    assert elected.leader in assignment
    assert elected.leader in live
    assert elected.leader in elected.isr
    assert set(elected.isr) <= live
    if not unclean:
        assert set(elected.isr) <= set(in_sync), "nobody joins the in-sync set by an election"
    if set(in_sync) & live:
        assert elected.leader in in_sync, "a clean leader goes before an unclean one"


# ---- after a controller took over


def test_a_new_partition_is_led_by_its_first_live_replica_and_all_live_ones_are_in_sync() -> None:
    assert elect_after_start((A, B, C), None, {B: 5, C: 6}, unclean_allowed=False) == Elected(B, (B, C))
    assert elect_after_start((A, B), None, {C: 5}, unclean_allowed=True) is None


def test_a_leader_that_has_been_there_all_the_time_is_left_alone() -> None:
    recorded = Recorded(B, (B, A), zxid=10)
    assert elect_after_start((A, B), recorded, {A: 3, B: 9}, unclean_allowed=False) is None


def test_a_leader_that_has_been_away_gives_way_to_another_in_sync_replica() -> None:
    recorded = Recorded(A, (A, B), zxid=10)
    elected = elect_after_start((A, B), recorded, {A: 11, B: 3}, unclean_allowed=False)
    assert elected == Elected(B, (B,))


def test_a_leader_that_has_been_away_and_is_alone_in_sync_leads_again_in_a_new_epoch() -> None:
    recorded = Recorded(A, (A,), zxid=10)
    elected = elect_after_start((A, B), recorded, {A: 11, B: 3}, unclean_allowed=False)
    assert elected == Elected(A, (A,))


def test_a_leader_that_is_gone_is_replaced_from_the_in_sync_set_only() -> None:
    recorded = Recorded(A, (A, C), zxid=10)
    assert elect_after_start((A, B, C), recorded, {B: 1, C: 2}, unclean_allowed=False) == Elected(C, (C,))
    alone = Recorded(A, (A,), zxid=10)
    assert elect_after_start((A, B), alone, {B: 1}, unclean_allowed=False) is None
    assert elect_after_start((A, B), alone, {B: 1}, unclean_allowed=True) == Elected(B, (B,))


def test_a_leaderless_partition_is_led_as_soon_as_one_in_sync_is_back() -> None:
    recorded = Recorded(NO_LEADER, (B,), zxid=10)
    assert elect_after_start((A, B), recorded, {A: 1}, unclean_allowed=False) is None
    assert elect_after_start((A, B), recorded, {A: 1, B: 11}, unclean_allowed=False) == Elected(B, (B,))


@given(replicas, subsets, subsets, st.sampled_from([A, B, C]), st.booleans())
def test_a_record_is_never_lost_by_an_election_unless_it_is_allowed(
    assignment: list[BrokerId], isr: set[BrokerId], live: set[BrokerId], leader: BrokerId, away: bool
) -> None:
    in_sync = tuple(broker for broker in assignment if broker in isr)
    recorded = Recorded(leader, in_sync, zxid=10)
    registrations = dict.fromkeys(live, 11 if away else 9)
    elected = elect_after_start(assignment, recorded, registrations, unclean_allowed=False)
    if elected is not None:
        assert set(elected.isr) <= isr & live
        assert elected.leader in elected.isr
    elif leader not in live:
        assert not set(in_sync) & live
