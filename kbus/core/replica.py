"""What a leader knows of its replicas, and the high watermark that follows from it."""

from collections.abc import Iterable

from kbus.types import Offset


def advanced_high_watermark(
    current: Offset, leader_end: Offset, in_sync_ends: Iterable[Offset], *, enough_in_sync: bool
) -> Offset:
    """The high watermark after a log end moved: the least end over the in-sync replicas.

    It never moves back, never passes the leader's own end, and stays while fewer than
    min.insync.replicas are in sync."""
    if not enough_in_sync:
        return current
    return Offset(max(current, min([leader_end, *in_sync_ends])))
