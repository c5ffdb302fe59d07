"""Which segments at the beginning of a log have outlived its retention settings."""

from collections.abc import Sequence

from kbus.storage.log_config import CLEANUP_DELETE, LogConfig
from kbus.storage.segment import Segment
from kbus.types import Offset


def count_expired(
    segments: Sequence[Segment],
    config: LogConfig,
    *,
    log_start_offset: Offset,
    log_end_offset: Offset,
    limit: Offset,
    now_ms: int,
) -> int:
    """How many segments from the first on may go. None that reaches beyond `limit`, the high watermark, so
    that the log never starts above it. An empty active segment always stays."""
    deletes = CLEANUP_DELETE in config.cleanup_policy
    size_bytes = sum(segment.size for segment in segments)
    excess_bytes = size_bytes - config.retention_bytes if deletes and config.retention_bytes >= 0 else -1
    for number, segment in enumerate(segments):
        is_active = number == len(segments) - 1
        end = log_end_offset if is_active else segments[number + 1].base_offset
        if end > limit or (is_active and segment.size == 0):
            return number
        is_before_start = not is_active and end <= log_start_offset
        is_too_much = excess_bytes >= segment.size
        is_too_old = deletes and 0 <= config.retention_ms < now_ms - segment.largest_timestamp
        if not (is_before_start or is_too_much or is_too_old):
            return number
        excess_bytes -= segment.size
    return len(segments)
