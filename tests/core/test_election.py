"""Who leads a partition."""

from hypothesis import given
from hypothesis import strategies as st

from kbus.core.election import Elected, elect_offline
from kbus.types import BrokerId

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
