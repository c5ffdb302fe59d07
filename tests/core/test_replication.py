"""A leader's view of its followers: the high watermark and the in-sync set."""

from kbus.core.replication import LeaderReplicas
from kbus.types import BrokerId, Offset

LEADER, FIRST, SECOND = BrokerId(1), BrokerId(2), BrokerId(3)
EPOCHS = {LEADER: 10, FIRST: 20, SECOND: 30}
MAX_LAG_MS = 1000


def replicas(isr: tuple[int, ...] = (1, 2, 3), *, epoch_start: int = 0) -> LeaderReplicas:
    return LeaderReplicas(
        local_id=LEADER,
        replicas=(LEADER, FIRST, SECOND),
        isr=[BrokerId(member) for member in isr],
        partition_epoch=5,
        epoch_start=Offset(epoch_start),
        now_ms=0,
    )


def fetch(leader: LeaderReplicas, broker: BrokerId, offset: int, *, leader_end: int, now_ms: int = 0) -> None:
    follower = leader.follower(broker)
    assert follower is not None
    follower.on_fetch(Offset(offset), Offset(leader_end), EPOCHS[broker], now_ms)


def watermark(leader: LeaderReplicas, current: int, leader_end: int, *, min_isr: int = 1) -> int:
    return leader.high_watermark(Offset(current), Offset(leader_end), min_isr=min_isr)


def test_the_high_watermark_is_what_every_replica_in_sync_has() -> None:
    leader = replicas()
    fetch(leader, FIRST, 7, leader_end=10)
    assert watermark(leader, 0, 10) == 0, "the second has not been heard of"
    fetch(leader, SECOND, 9, leader_end=10)
    assert watermark(leader, 0, 10) == 7


def test_the_high_watermark_never_moves_back() -> None:
    leader = replicas((1, 2))
    fetch(leader, FIRST, 3, leader_end=10)
    assert watermark(leader, 5, 10) == 5


def test_the_high_watermark_stays_while_too_few_are_in_sync() -> None:
    leader = replicas((1,))
    assert watermark(leader, 0, 10, min_isr=2) == 0
    assert watermark(leader, 0, 10, min_isr=1) == 10


def test_a_replica_out_of_sync_does_not_hold_the_high_watermark() -> None:
    leader = replicas((1, 2))
    fetch(leader, FIRST, 10, leader_end=10)
    assert watermark(leader, 0, 10) == 10


def test_a_pending_expansion_already_counts_for_the_high_watermark() -> None:
    leader = replicas((1, 2))
    fetch(leader, FIRST, 10, leader_end=10)
    fetch(leader, SECOND, 8, leader_end=10)
    assert leader.expansion(SECOND, Offset(8), EPOCHS) is not None
    assert watermark(leader, 8, 10) == 8


def test_a_pending_shrink_still_counts_the_old_set() -> None:
    leader = replicas((1, 2))
    fetch(leader, FIRST, 4, leader_end=10)
    change = leader.shrinkage(Offset(10), MAX_LAG_MS + 1, MAX_LAG_MS)
    assert change is not None
    assert change.isr == (LEADER,)
    assert change.partition_epoch == 5
    assert watermark(leader, 4, 10) == 4
    leader.confirm(change.isr, 6)
    assert watermark(leader, 4, 10) == 10


def test_a_follower_at_the_high_watermark_but_below_the_epochs_start_does_not_join() -> None:
    leader = replicas((1,), epoch_start=20)
    fetch(leader, FIRST, 15, leader_end=20)
    assert leader.expansion(FIRST, Offset(15), EPOCHS) is None
    fetch(leader, FIRST, 20, leader_end=20)
    change = leader.expansion(FIRST, Offset(15), EPOCHS)
    assert change is not None
    assert change.isr == (LEADER, FIRST)


def test_a_follower_that_registered_anew_since_its_fetch_does_not_join() -> None:
    leader = replicas((1,))
    fetch(leader, FIRST, 10, leader_end=10)
    assert leader.expansion(FIRST, Offset(10), {**EPOCHS, FIRST: 21}) is None
    assert leader.expansion(FIRST, Offset(10), {LEADER: 10}) is None
    assert leader.expansion(FIRST, Offset(10), EPOCHS) is not None


def test_one_change_is_under_way_at_a_time() -> None:
    leader = replicas((1,))
    for broker in (FIRST, SECOND):
        fetch(leader, broker, 10, leader_end=10)
    assert leader.expansion(FIRST, Offset(10), EPOCHS) is not None
    assert leader.expansion(SECOND, Offset(10), EPOCHS) is None
    leader.give_up()
    assert leader.expansion(SECOND, Offset(10), EPOCHS) is not None


def test_a_follower_that_is_one_round_trip_behind_under_load_stays_in_sync() -> None:
    leader = replicas((1, 2))
    for now_ms in range(0, 5000, 100):
        fetch(leader, FIRST, now_ms, leader_end=now_ms + 100, now_ms=now_ms)
    assert leader.shrinkage(Offset(5000), 5000, MAX_LAG_MS) is None


def test_a_follower_that_never_catches_up_leaves_although_it_fetches() -> None:
    leader = replicas((1, 2))
    for now_ms in range(0, 5000, 100):
        fetch(leader, FIRST, now_ms // 10, leader_end=now_ms + 1000, now_ms=now_ms)
    assert leader.shrinkage(Offset(6000), 5000, MAX_LAG_MS) is not None


def test_a_silent_follower_that_has_everything_stays_in_sync() -> None:
    leader = replicas((1, 2))
    fetch(leader, FIRST, 10, leader_end=10)
    assert leader.shrinkage(Offset(10), 1_000_000, MAX_LAG_MS) is None


def test_older_news_of_the_in_sync_set_does_not_replace_newer() -> None:
    leader = replicas((1, 2, 3))
    leader.confirm((LEADER, FIRST), 7)
    leader.confirm((LEADER, FIRST, SECOND), 6)
    assert leader.isr == (LEADER, FIRST)
    assert leader.partition_epoch == 7
