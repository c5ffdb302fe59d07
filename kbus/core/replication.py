"""What a leader knows of its followers: how far each is, who is in sync, and what follows from it.

Pure: offsets and `now_ms` go in, decisions come out. The leader's `Partition` carries them out: it writes
in-sync sets to ZooKeeper by compare-and-set and comes back with `confirm` or `give_up`.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from kbus.types import NO_OFFSET, BrokerId, Offset


@dataclass(slots=True)
class Follower:
    """Progress of one follower as its fetches show it."""

    end_offset: Offset = NO_OFFSET
    """Unknown until its first fetch in this leadership: it then counts as having nothing."""
    caught_up_ms: int = 0
    """When it last had everything that the leader had."""
    broker_epoch: int = -1
    last_fetch_ms: int = 0
    leader_end_at_last_fetch: Offset = NO_OFFSET

    def on_fetch(self, fetch_offset: Offset, leader_end: Offset, broker_epoch: int, now_ms: int) -> None:
        if fetch_offset >= leader_end:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif fetch_offset >= self.leader_end_at_last_fetch:
            # It now has all that there was at its last fetch: behind by one round trip is not behind.
            self.caught_up_ms = max(self.caught_up_ms, self.last_fetch_ms)
        self.end_offset = fetch_offset
        self.broker_epoch = broker_epoch
        self.last_fetch_ms = now_ms
        self.leader_end_at_last_fetch = leader_end


class IsrChange(NamedTuple):
    """A new in-sync set, to be written with `partition_epoch` as the version that is expected."""

    isr: tuple[BrokerId, ...]
    partition_epoch: int


class LeaderReplicas:
    """One leadership of one partition.

    While a change of the in-sync set is under way, both outcomes are possible. `maximal_isr` is the larger
    of the two: the high watermark may only move on what all of them have, so that it is right either way.
    Invariant: `isr` and `partition_epoch` are what ZooKeeper last told; at most one change is under way.
    """

    def __init__(
        self,
        *,
        local_id: BrokerId,
        replicas: Iterable[BrokerId],
        isr: Iterable[BrokerId],
        partition_epoch: int,
        epoch_start: Offset,
        now_ms: int,
    ) -> None:
        self.local_id = local_id
        self.isr = tuple(isr)
        self.partition_epoch = partition_epoch
        self.epoch_start = epoch_start
        self.pending: IsrChange | None = None
        # Members of the in-sync set get the whole lag time to show themselves.
        self._followers = {
            replica: Follower(caught_up_ms=now_ms) for replica in replicas if replica != local_id
        }

    @property
    def maximal_isr(self) -> frozenset[BrokerId]:
        pending = self.pending.isr if self.pending else ()
        return frozenset((*self.isr, *pending))

    def follower(self, broker_id: BrokerId) -> Follower | None:
        return self._followers.get(broker_id)

    def end_offsets(self) -> dict[BrokerId, Offset]:
        return {broker: follower.end_offset for broker, follower in self._followers.items()}

    def set_replicas(self, replicas: Iterable[BrokerId], now_ms: int) -> None:
        """The assignment changed within the leadership, as reassignments do."""
        wanted = [replica for replica in replicas if replica != self.local_id]
        self._followers = {
            replica: self._followers.get(replica) or Follower(caught_up_ms=now_ms) for replica in wanted
        }

    def high_watermark(self, current: Offset, leader_end: Offset, *, min_isr: int) -> Offset:
        """The least end over the maximal in-sync set. It never moves back, and stays while too few are in
        sync."""
        if len(self.isr) < min_isr:
            return current
        ends = [leader_end]
        for broker in self.maximal_isr:
            if broker != self.local_id:
                follower = self._followers.get(broker)
                ends.append(follower.end_offset if follower else NO_OFFSET)
        return Offset(max(current, min(ends)))

    def expansion(
        self, broker: BrokerId, high_watermark: Offset, live_epochs: dict[BrokerId, int]
    ) -> IsrChange | None:
        """`broker` joins the in-sync set if it has all that is committed and has been part of this
        leadership: at the high watermark alone, its log may still end below where this epoch began."""
        follower = self._followers.get(broker)
        if follower is None or broker in self.isr or self.pending is not None:
            return None
        if live_epochs.get(broker) != follower.broker_epoch:
            return None  # it has been away since, perhaps with an empty disk, or is gone (KIP-903)
        if follower.end_offset < max(high_watermark, self.epoch_start):
            return None
        return self._begin((*self.isr, broker))

    def shrinkage(self, leader_end: Offset, now_ms: int, max_lag_ms: int) -> IsrChange | None:
        """Members that have not had everything for `max_lag_ms` leave the in-sync set."""
        if self.pending is not None:
            return None
        slow = {
            broker
            for broker in self.isr
            if broker != self.local_id and not self._is_caught_up(broker, leader_end, now_ms, max_lag_ms)
        }
        if not slow:
            return None
        return self._begin(tuple(broker for broker in self.isr if broker not in slow))

    def _is_caught_up(self, broker: BrokerId, leader_end: Offset, now_ms: int, max_lag_ms: int) -> bool:
        follower = self._followers.get(broker)
        if follower is None:
            return False
        return follower.end_offset == leader_end or now_ms - follower.caught_up_ms <= max_lag_ms

    def _begin(self, isr: tuple[BrokerId, ...]) -> IsrChange:
        self.pending = IsrChange(isr, self.partition_epoch)
        return self.pending

    def confirm(self, isr: Collection[BrokerId], partition_epoch: int) -> None:
        """ZooKeeper has this in-sync set now, by our write or by the controller's."""
        if partition_epoch >= self.partition_epoch:
            self.isr = tuple(isr)
            self.partition_epoch = partition_epoch
        self.pending = None

    def give_up(self) -> None:
        """The write was refused: somebody else wrote. What it was comes with the next metadata."""
        self.pending = None
