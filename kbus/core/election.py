"""Who leads a partition. Every rule is one small function of assignment, in-sync set and live brokers."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from kbus.types import BrokerId


class Elected(NamedTuple):
    leader: BrokerId
    isr: tuple[BrokerId, ...]


def elect_offline(
    assignment: Sequence[BrokerId],
    isr: Collection[BrokerId],
    live: Collection[BrokerId],
    *,
    unclean_allowed: bool,
) -> Elected | None:
    """A leader for a partition that has none: the first assigned replica that is alive and in sync.

    With none in sync, and only if allowed, the first alive one becomes leader and the whole in-sync set:
    what the others had beyond its log is lost."""
    for replica in assignment:
        if replica in live and replica in isr:
            return Elected(replica, tuple(member for member in isr if member in live))
    if unclean_allowed:
        for replica in assignment:
            if replica in live:
                return Elected(replica, (replica,))
    return None


class Recorded(NamedTuple):
    """A partition's leadership as it was last written down, and when (a zxid)."""

    leader: BrokerId
    isr: tuple[BrokerId, ...]
    zxid: int


def elect_after_start(
    assignment: Sequence[BrokerId],
    recorded: Recorded | None,
    registrations: Mapping[BrokerId, int],
    *,
    unclean_allowed: bool,
) -> Elected | None:
    """What a controller that has just taken over does about a partition; None: leave it as it is.

    `registrations` has the zxid at which each live broker registered. A leader that registered after its
    leadership was written down has been away in between and may have lost the unflushed end of its log:
    another in-sync replica goes before it, and even if it leads again, it does so in a new epoch, by which
    a record that takes the place of a lost one is told apart."""
    if recorded is None:
        live = tuple(replica for replica in assignment if replica in registrations)
        return Elected(live[0], live) if live else None
    registered = registrations.get(recorded.leader)
    if registered is not None and registered < recorded.zxid:
        return None
    others = {broker for broker in registrations if broker != recorded.leader}
    elected = elect_offline(assignment, recorded.isr, others, unclean_allowed=False)
    if elected is not None:
        return elected
    return elect_offline(assignment, recorded.isr, registrations, unclean_allowed=unclean_allowed)
