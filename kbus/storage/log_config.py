"""What a topic's settings say about its logs, with Kafka's defaults."""

from dataclasses import dataclass

from kbus.records.batch import LOG_OVERHEAD, TimestampType

CLEANUP_DELETE = "delete"
CLEANUP_COMPACT = "compact"
_NEVER = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * 24 * 60 * 60 * 1000
    segment_jitter_ms: int = 0
    index_interval_bytes: int = 4096
    segment_index_bytes: int = 10 * 1024 * 1024
    retention_bytes: int = -1
    retention_ms: int = 7 * 24 * 60 * 60 * 1000
    max_message_bytes: int = 1024 * 1024 + LOG_OVERHEAD
    flush_interval_messages: int = _NEVER
    flush_interval_ms: int = _NEVER
    cleanup_policy: frozenset[str] = frozenset((CLEANUP_DELETE,))
    compression_type: str = "producer"
    compression_level: int | None = None
    """Of the codec that batches are brought to; None: the codec's own default."""
    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    message_timestamp_before_max_ms: int = _NEVER
    message_timestamp_after_max_ms: int = _NEVER
    file_delete_delay_ms: int = 60_000
    producer_id_expiration_ms: int = 24 * 60 * 60 * 1000
