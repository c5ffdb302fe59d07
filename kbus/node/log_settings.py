"""From a topic's settings to what its logs need to know."""

from kbus.config import BrokerConfig, TopicConfig, topic
from kbus.config import broker as settings
from kbus.records.batch import TimestampType
from kbus.storage.log_config import LogConfig


def log_config(broker: BrokerConfig, config: TopicConfig) -> LogConfig:
    policy: tuple[str, ...] = config[topic.CLEANUP_POLICY]
    append_time = config[topic.MESSAGE_TIMESTAMP_TYPE] == "LogAppendTime"
    codec = config[topic.COMPRESSION_TYPE]
    levels = {
        "gzip": topic.COMPRESSION_GZIP_LEVEL,
        "lz4": topic.COMPRESSION_LZ4_LEVEL,
        "zstd": topic.COMPRESSION_ZSTD_LEVEL,
    }
    return LogConfig(
        segment_bytes=config[topic.SEGMENT_BYTES],
        segment_ms=config[topic.SEGMENT_MS],
        segment_jitter_ms=config[topic.SEGMENT_JITTER_MS],
        index_interval_bytes=config[topic.INDEX_INTERVAL_BYTES],
        segment_index_bytes=config[topic.SEGMENT_INDEX_BYTES],
        retention_bytes=config[topic.RETENTION_BYTES],
        retention_ms=config[topic.RETENTION_MS],
        max_message_bytes=config[topic.MAX_MESSAGE_BYTES],
        flush_interval_messages=config[topic.FLUSH_MESSAGES],
        flush_interval_ms=config[topic.FLUSH_MS],
        cleanup_policy=frozenset(policy),
        compression_type=codec,
        compression_level=config[levels[codec]] if codec in levels else None,
        message_timestamp_type=TimestampType.LOG_APPEND_TIME if append_time else TimestampType.CREATE_TIME,
        message_timestamp_before_max_ms=config[topic.MESSAGE_TIMESTAMP_BEFORE_MAX_MS],
        message_timestamp_after_max_ms=config[topic.MESSAGE_TIMESTAMP_AFTER_MAX_MS],
        file_delete_delay_ms=config[topic.FILE_DELETE_DELAY_MS],
        producer_id_expiration_ms=broker[settings.PRODUCER_ID_EXPIRATION_MS],
    )
