"""Settings of a topic, by Kafka's names, each with the broker settings that stand in for it.

The list is Kafka's, whole, so that every tool that sets one can. Where kbus does not have what a setting is
about, the setting says so and takes only the values that need nothing done.
"""

import re
from typing import Any, TypeVar

from kbus.config import broker
from kbus.config.setting import (
    BOOLEAN,
    BrokerSetting,
    ConfigType,
    Importance,
    Kind,
    Synonym,
    TopicSetting,
    int64,
    list_of,
)

T = TypeVar("T")

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
_MAX_INT64 = (1 << 63) - 1


def _same(value: Any) -> Any:
    return value


def _from_minutes(minutes: int) -> int:
    return minutes * _MINUTE_MS if minutes >= 0 else -1


def _from_hours(hours: int) -> int:
    return hours * _HOUR_MS if hours >= 0 else -1


def _like(name: str, setting: BrokerSetting[T], doc: str) -> TopicSetting[T]:
    """A topic setting with the type and default of its one broker setting."""
    synonym = Synonym(setting=setting, convert=_same)
    return TopicSetting(name=name, kind=setting.kind, default=setting.default, doc=doc, synonyms=(synonym,))


def _from(name: str, kind: Kind[T], default: T, doc: str, *synonyms: Synonym) -> TopicSetting[T]:
    return TopicSetting(name=name, kind=kind, default=default, doc=doc, synonyms=synonyms)


def _synonym(setting: BrokerSetting[Any], convert: Any = _same) -> Synonym:
    return Synonym(setting=setting, convert=convert)


CLEANUP_POLICY = _like(
    "cleanup.policy",
    broker.LOG_CLEANUP_POLICY,
    "What becomes of old segments: `delete` removes them by retention.ms and retention.bytes, `compact` "
    "keeps the last value of each key, both do both. Compaction is not carried out yet: records stay.",
)
COMPRESSION_TYPE = _like(
    "compression.type",
    broker.COMPRESSION_TYPE,
    "How batches are stored: `producer` keeps them as they come, a codec recompresses those of another.",
)
COMPRESSION_GZIP_LEVEL = _like(
    "compression.gzip.level", broker.COMPRESSION_GZIP_LEVEL, "The level at which compression.type gzip works."
)
COMPRESSION_LZ4_LEVEL = _like(
    "compression.lz4.level", broker.COMPRESSION_LZ4_LEVEL, "The level at which compression.type lz4 works."
)
COMPRESSION_ZSTD_LEVEL = _like(
    "compression.zstd.level", broker.COMPRESSION_ZSTD_LEVEL, "The level at which compression.type zstd works."
)
DELETE_RETENTION_MS = _like(
    "delete.retention.ms",
    broker.LOG_CLEANER_DELETE_RETENTION_MS,
    "How long compaction keeps the tombstone of a deleted key, for consumers that read from the beginning.",
)
FILE_DELETE_DELAY_MS = _like(
    "file.delete.delay.ms",
    broker.LOG_SEGMENT_DELETE_DELAY_MS,
    "How long the files of a removed segment stay on disk.",
)
FLUSH_MESSAGES = _like(
    "flush.messages",
    broker.LOG_FLUSH_INTERVAL_MESSAGES,
    "After how many records a log is forced to disk; 1 is after each. By default the operating system "
    "decides, and replication is what protects from the loss of a machine.",
)
FLUSH_MS = _from(
    "flush.ms",
    int64(at_least=0),
    broker.LOG_FLUSH_SCHEDULER_INTERVAL_MS.default,
    "After how long a record is forced to disk. By default the operating system decides.",
    _synonym(broker.LOG_FLUSH_INTERVAL_MS),
    _synonym(broker.LOG_FLUSH_SCHEDULER_INTERVAL_MS),
)
INDEX_INTERVAL_BYTES = _like(
    "index.interval.bytes",
    broker.LOG_INDEX_INTERVAL_BYTES,
    "Bytes of records between two entries of an index.",
)
MAX_COMPACTION_LAG_MS = _like(
    "max.compaction.lag.ms",
    broker.LOG_CLEANER_MAX_COMPACTION_LAG_MS,
    "The longest a record may wait for compaction.",
)
MAX_MESSAGE_BYTES = _like(
    "max.message.bytes",
    broker.MESSAGE_MAX_BYTES,
    "The largest record batch, as compressed, that is accepted.",
)
MESSAGE_TIMESTAMP_AFTER_MAX_MS = _like(
    "message.timestamp.after.max.ms",
    broker.LOG_MESSAGE_TIMESTAMP_AFTER_MAX_MS,
    "How far ahead of the broker's clock a record's timestamp may be (message.timestamp.type CreateTime).",
)
MESSAGE_TIMESTAMP_BEFORE_MAX_MS = _like(
    "message.timestamp.before.max.ms",
    broker.LOG_MESSAGE_TIMESTAMP_BEFORE_MAX_MS,
    "How far behind the broker's clock a record's timestamp may be (message.timestamp.type CreateTime).",
)
MESSAGE_TIMESTAMP_TYPE = _like(
    "message.timestamp.type",
    broker.LOG_MESSAGE_TIMESTAMP_TYPE,
    "Whose time records carry: the producer's (CreateTime) or the broker's (LogAppendTime).",
)
MIN_CLEANABLE_DIRTY_RATIO = _like(
    "min.cleanable.dirty.ratio",
    broker.LOG_CLEANER_MIN_CLEANABLE_RATIO,
    "The part of a log that must be uncompacted before compaction is worth it.",
)
MIN_COMPACTION_LAG_MS = _like(
    "min.compaction.lag.ms",
    broker.LOG_CLEANER_MIN_COMPACTION_LAG_MS,
    "The shortest time for which a record is safe from compaction.",
)
MIN_INSYNC_REPLICAS = _like(
    "min.insync.replicas",
    broker.MIN_INSYNC_REPLICAS,
    "In-sync replicas without which a write with acks=all is refused. With three replicas, 2 survives the "
    "loss of one.",
)
PREALLOCATE = _like(
    "preallocate", broker.LOG_PREALLOCATE, "Set the disk space of a new segment aside at once."
)
RETENTION_BYTES = _like(
    "retention.bytes",
    broker.LOG_RETENTION_BYTES,
    "The size of a partition above which its oldest segments are deleted; -1 is any size.",
)
RETENTION_MS = _from(
    "retention.ms",
    int64(at_least=-1),
    _from_hours(broker.LOG_RETENTION_HOURS.default),
    "How long records are kept; -1 is for ever.",
    _synonym(broker.LOG_RETENTION_MS),
    _synonym(broker.LOG_RETENTION_MINUTES, _from_minutes),
    _synonym(broker.LOG_RETENTION_HOURS, _from_hours),
)
SEGMENT_BYTES = _like(
    "segment.bytes", broker.LOG_SEGMENT_BYTES, "The size at which a segment ends and the next begins."
)
SEGMENT_INDEX_BYTES = _like(
    "segment.index.bytes",
    broker.LOG_INDEX_SIZE_MAX_BYTES,
    "The size at which an index is full and its segment ends.",
)
SEGMENT_JITTER_MS = _from(
    "segment.jitter.ms",
    int64(at_least=0),
    _from_hours(broker.LOG_ROLL_JITTER_HOURS.default),
    "A random time of up to this much is taken off segment.ms, so that segments do not all end at once.",
    _synonym(broker.LOG_ROLL_JITTER_MS),
    _synonym(broker.LOG_ROLL_JITTER_HOURS, _from_hours),
)
SEGMENT_MS = _from(
    "segment.ms",
    int64(at_least=1),
    _from_hours(broker.LOG_ROLL_HOURS.default),
    "The time after which a segment ends and the next begins, however small it is.",
    _synonym(broker.LOG_ROLL_MS),
    _synonym(broker.LOG_ROLL_HOURS, _from_hours),
)
UNCLEAN_LEADER_ELECTION_ENABLE = _like(
    "unclean.leader.election.enable",
    broker.UNCLEAN_LEADER_ELECTION_ENABLE,
    "Let a replica that is not in sync lead when no other is left: available again, with records lost.",
)


# What Kafka has and kbus does not


def _only(allowed: T, kind: Kind[T], reason: str) -> Kind[T]:
    def parse(text: str) -> T:
        value = kind.parse(text)
        if value != allowed:
            raise ValueError(f"cannot be {text}: {reason}")
        return value

    return Kind(type=kind.type, expects=kind.render(allowed), parse=parse, render=kind.render)


def _parse_format_version(text: str) -> str:
    match = re.match(r"(\d+)\.(\d+)", text)
    if match is None:
        raise ValueError
    if (int(match[1]), int(match[2])) < (0, 11):
        raise ValueError(f"cannot be {text}: records are stored in the format of Kafka 0.11 and later only")
    return text


_FORMAT_VERSION: Kind[str] = Kind(
    type=ConfigType.STRING, expects="a version of Kafka from 0.11", parse=_parse_format_version, render=str
)
_THROTTLED_REPLICAS = list_of(
    "* or a list of partition:broker", lambda item: re.fullmatch(r"\*|\d+:\d+", item) is not None
)
_TIERED = "kbus has no tiered storage"


def _unused(name: str, kind: Kind[T], default: T, doc: str) -> TopicSetting[T]:
    return TopicSetting(name=name, kind=kind, default=default, doc=doc, importance=Importance.LOW)


MESSAGE_FORMAT_VERSION = _unused(
    "message.format.version",
    _FORMAT_VERSION,
    "3.0-IV1",
    "Without effect: records are always stored in format 2, that of Kafka 0.11 and later.",
)
MESSAGE_DOWNCONVERSION_ENABLE = _unused(
    "message.downconversion.enable",
    BOOLEAN,
    True,
    "Without effect: no client of a format before 2 is served.",
)
MESSAGE_TIMESTAMP_DIFFERENCE_MAX_MS = _unused(
    "message.timestamp.difference.max.ms",
    _only(
        _MAX_INT64,
        int64(at_least=0),
        "set message.timestamp.before.max.ms and message.timestamp.after.max.ms, which took its place",
    ),
    _MAX_INT64,
    "Replaced by message.timestamp.before.max.ms and message.timestamp.after.max.ms.",
)
LEADER_REPLICATION_THROTTLED_REPLICAS = _unused(
    "leader.replication.throttled.replicas",
    _THROTTLED_REPLICAS,
    (),
    "Without effect: replication is not throttled.",
)
FOLLOWER_REPLICATION_THROTTLED_REPLICAS = _unused(
    "follower.replication.throttled.replicas",
    _THROTTLED_REPLICAS,
    (),
    "Without effect: replication is not throttled.",
)
REMOTE_STORAGE_ENABLE = _unused(
    "remote.storage.enable",
    _only(False, BOOLEAN, _TIERED),
    False,
    "Tiered storage, which kbus does not have.",
)
REMOTE_LOG_COPY_DISABLE = _unused(
    "remote.log.copy.disable",
    _only(False, BOOLEAN, _TIERED),
    False,
    "Of tiered storage, which kbus does not have.",
)
REMOTE_LOG_DELETE_ON_DISABLE = _unused(
    "remote.log.delete.on.disable",
    _only(False, BOOLEAN, _TIERED),
    False,
    "Of tiered storage, which kbus does not have.",
)
LOCAL_RETENTION_MS = _unused(
    "local.retention.ms",
    int64(at_least=-2),
    -2,
    "Without effect: of tiered storage, which kbus does not have.",
)
LOCAL_RETENTION_BYTES = _unused(
    "local.retention.bytes",
    int64(at_least=-2),
    -2,
    "Without effect: of tiered storage, which kbus does not have.",
)

SETTINGS: dict[str, TopicSetting[Any]] = {
    value.name: value for value in list(globals().values()) if isinstance(value, TopicSetting)
}
