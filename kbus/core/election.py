"""Who leads a partition. Every rule is one small function of assignment, in-sync set and live brokers."""

from collections.abc import Collection, Sequence
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
