"""Who leads what, after brokers came, went, or asked to leave."""

from uuid import uuid4

from kbus.core.cluster import Broker, PartitionState, Topic
from kbus.core.controller import ClusterState, after_takeover, failed, first_leadership, prefer, repair
from kbus.core.election import Elected
from kbus.types import NO_LEADER, BrokerId, LeaderEpoch, TopicPartition

T0 = TopicPartition("t", 0)


def broker(number: int, epoch: int | None = None) -> Broker:
    return Broker(id=BrokerId(number), endpoints={}, rack=None, epoch=epoch or number * 10)


def cluster(
    live: tuple[int, ...],
    *,
    leader: int = 1,
    isr: tuple[int, ...] = (1, 2, 3),
    replicas: tuple[int, ...] = (1, 2, 3),
) -> ClusterState:
    state = PartitionState(
        replicas=tuple(BrokerId(number) for number in replicas),
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(4),
        isr=tuple(BrokerId(number) for number in isr),
        partition_epoch=9,
    )
    topic = Topic(name="t", id=uuid4(), partitions={0: state})
    return ClusterState(registered={BrokerId(n): broker(n) for n in live}, topics={"t": topic})


def never(_topic: str) -> bool:
    return False


def always(_topic: str) -> bool:
    return True


def test_nothing_changes_while_everybody_is_there() -> None:
    assert repair(cluster((1, 2, 3)), never) == []


def test_the_first_live_replica_in_sync_takes_over_in_a_new_epoch_without_the_dead_one() -> None:
    (change,) = repair(cluster((2, 3), isr=(1, 3)), never)
    assert (change.leader, change.isr, change.leader_epoch) == (3, (3,), 5)
    assert change.before.partition_epoch == 9


def test_a_dead_follower_leaves_the_in_sync_set() -> None:
    (change,) = repair(cluster((1, 3)), never)
    assert (change.leader, change.isr) == (1, (1, 3))


def test_without_a_live_replica_in_sync_there_is_no_leader_and_the_set_is_kept() -> None:
    (change,) = repair(cluster((2, 3), isr=(1,)), never)
    assert (change.leader, change.isr) == (NO_LEADER, (1,))
    state = cluster((2, 3), isr=(1,), leader=NO_LEADER)
    assert repair(state, never) == [], "and that is written once, not again and again"


def test_an_unclean_leader_is_the_whole_in_sync_set_and_only_if_allowed() -> None:
    (change,) = repair(cluster((2, 3), isr=(1,)), always)
    assert (change.leader, change.isr) == (2, (2,))


def test_the_last_one_in_sync_leads_again_when_it_is_back() -> None:
    (change,) = repair(cluster((1, 2, 3), isr=(1,), leader=NO_LEADER), never)
    assert (change.leader, change.isr) == (1, (1,))


def test_a_suspected_broker_counts_as_gone_until_it_registers_anew() -> None:
    state = cluster((1, 2, 3))
    state.suspected[BrokerId(1)] = 10
    (change,) = repair(state, never)
    assert change.leader == 2
    state.registered[BrokerId(1)] = broker(1, epoch=99)
    assert repair(state, never) == []


def test_a_leaving_broker_neither_leads_nor_is_needed() -> None:
    state = cluster((1, 2, 3))
    state.leaving[BrokerId(1)] = 10
    (change,) = repair(state, never)
    assert (change.leader, change.isr) == (2, (2, 3))


def test_a_leaving_broker_that_is_the_only_one_in_sync_goes_on_leading() -> None:
    state = cluster((1, 2, 3), isr=(1,))
    state.leaving[BrokerId(1)] = 10
    assert repair(state, always) == []


def test_a_bounced_leader_gives_way_to_another_in_sync() -> None:
    (change,) = failed(cluster((1, 2, 3)), BrokerId(1))
    assert (change.leader, change.isr) == (2, (2, 3))


def test_a_bounced_follower_leaves_the_in_sync_set() -> None:
    (change,) = failed(cluster((1, 2, 3)), BrokerId(3))
    assert (change.leader, change.isr) == (1, (1, 2))


def test_a_bounced_last_one_in_sync_stays_in_the_set_without_leading() -> None:
    (change,) = failed(cluster((1, 2, 3), isr=(1,)), BrokerId(1))
    assert (change.leader, change.isr) == (NO_LEADER, (1,))


def test_the_preferred_leader_leads_again_only_if_it_is_in_sync() -> None:
    (change,) = prefer(cluster((1, 2, 3), leader=2), [T0])
    assert (change.leader, change.isr) == (1, (1, 2, 3))
    assert prefer(cluster((1, 2, 3), leader=2, isr=(2, 3)), [T0]) == []
    assert prefer(cluster((2, 3), leader=2), [T0]) == []


def test_a_recorded_change_is_what_the_next_decision_rests_on() -> None:
    state = cluster((2, 3))
    (change,) = repair(state, never)
    state.record(change.partition, change.after(10))
    assert repair(state, never) == []
    found = state.state_of(T0)
    assert found is not None
    assert (found.leader, found.leader_epoch, found.partition_epoch) == (2, 5, 10)


# ---- a new controller's first look: states were written at zxid 100


def took_over(state: ClusterState) -> list[tuple[int, tuple[int, ...]]]:
    return [(change.leader, change.isr) for change in after_takeover(state, {T0: 100}, never)]


def came_back(state: ClusterState, *numbers: int) -> ClusterState:
    """These registered after the state was written."""
    for number in numbers:
        state.registered[BrokerId(number)] = broker(number, epoch=200 + number)
    return state


def test_a_leader_that_was_there_all_the_time_is_left_alone() -> None:
    assert took_over(cluster((1, 2, 3))) == []


def test_a_leader_that_was_away_gives_way_to_one_that_was_not() -> None:
    assert took_over(came_back(cluster((1, 2, 3)), 1)) == [(2, (2, 3))]


def test_a_follower_that_was_away_leaves_the_in_sync_set() -> None:
    assert took_over(came_back(cluster((1, 2, 3)), 3)) == [(1, (1, 2))]


def test_after_all_were_away_the_first_in_sync_leads_and_none_is_left_out() -> None:
    state = came_back(cluster((1, 2, 3), leader=3, isr=(2, 3)), 1, 2, 3)
    assert took_over(state) == [(2, (2, 3))]


def test_a_leader_that_was_away_and_is_alone_in_sync_leads_again_in_a_new_epoch() -> None:
    state = came_back(cluster((1, 2, 3), isr=(1,)), 1)
    (change,) = after_takeover(state, {T0: 100}, never)
    assert (change.leader, change.isr, change.leader_epoch) == (1, (1,), 5)


def test_a_new_partition_is_led_by_its_first_live_replica_and_all_live_ones_are_in_sync() -> None:
    state = cluster((2, 3))
    replicas = tuple(BrokerId(number) for number in (1, 2, 3))
    assert first_leadership(state, replicas) == Elected(BrokerId(2), (BrokerId(2), BrokerId(3)))
    assert first_leadership(cluster(()), replicas) is None
