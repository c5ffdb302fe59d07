"""Settings of a broker, by Kafka's names. Names that begin with `kbus.` are our own.

A setting is here because something reads it; `kafka_only` knows the rest of Kafka's.
"""

from typing import Any, TypeVar

from kbus.config.addresses import ENDPOINTS, PROTOCOL_MAP, SECURITY_PROTOCOLS, ZOOKEEPER_ADDRESS, Endpoint
from kbus.config.setting import (
    BOOLEAN,
    STRING,
    BrokerSetting,
    Importance,
    Kind,
    UpdateMode,
    double,
    int32,
    int64,
    list_of,
    one_of,
    some_of,
)

T = TypeVar("T")

HIGH, MEDIUM, LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW
CLUSTER_WIDE = UpdateMode.CLUSTER_WIDE
READ_ONLY = UpdateMode.READ_ONLY
_MAX_INT64 = (1 << 63) - 1


def _setting(
    name: str,
    kind: Kind[T],
    default: T,
    doc: str,
    importance: Importance = MEDIUM,
    update_mode: UpdateMode = READ_ONLY,
) -> BrokerSetting[T]:
    return BrokerSetting(
        name=name, kind=kind, default=default, doc=doc, importance=importance, update_mode=update_mode
    )


def _optional(
    name: str, kind: Kind[T], doc: str, importance: Importance = MEDIUM, update_mode: UpdateMode = READ_ONLY
) -> BrokerSetting[T | None]:
    return BrokerSetting(
        name=name, kind=kind, default=None, doc=doc, importance=importance, update_mode=update_mode
    )


def _for_topics(
    name: str, kind: Kind[Any], default: T, topic_name: str, note: str = "", importance: Importance = HIGH
) -> BrokerSetting[T]:
    """The value of a topic setting for topics that do not set it."""
    doc = f"The default of {topic_name} for topics.{' ' + note if note else ''}"
    return _setting(name, kind, default, doc, importance, CLUSTER_WIDE)


def _for_topics_in(
    unit: str, name: str, kind: Kind[Any], default: T, topic_name: str, before: str
) -> BrokerSetting[T]:
    doc = f"The default of {topic_name} for topics, in {unit}; {before} goes before it."
    return _setting(name, kind, default, doc, HIGH)


# The broker itself

BROKER_ID = _setting(
    "broker.id",
    int32(at_least=-1),
    -1,
    "The number of this broker in the cluster. With -1 it is the one its data directories were written with, "
    "or, for new ones, a number above reserved.broker.max.id that no other broker of the cluster has had.",
    HIGH,
)
RESERVED_BROKER_MAX_ID = _setting(
    "reserved.broker.max.id",
    int32(at_least=0),
    1000,
    "The highest broker.id that people choose; generated ones begin above it.",
)
BROKER_RACK = _optional(
    "broker.rack", STRING, "The rack of this broker; replicas of a partition are spread over racks."
)
LOG_DIR = _optional(
    "log.dir",
    STRING,
    "The data directory, where log.dirs is not set. Without either, one under $KBUS_HOME.",
    HIGH,
)
LOG_DIRS = _optional(
    "log.dirs",
    list_of("a list of directories", bool),
    "The data directories, separated by commas. The failure of one takes only its partitions offline.",
    HIGH,
)

# Listeners and connections

LISTENERS = _setting(
    "listeners",
    ENDPOINTS,
    (Endpoint("PLAINTEXT", "127.0.0.1", 9092),),
    "Where to listen, as NAME://host:port, separated by commas. No host means every interface, port 0 any "
    "free port. Unlike Kafka's, the default is reachable from this machine only: no client has to "
    "authenticate.",
    HIGH,
)
ADVERTISED_LISTENERS = _optional(
    "advertised.listeners",
    ENDPOINTS,
    "The addresses that clients are told to connect to, where they differ from listeners.",
    HIGH,
)
LISTENER_SECURITY_PROTOCOL_MAP = _setting(
    "listener.security.protocol.map",
    PROTOCOL_MAP,
    {protocol: protocol for protocol in SECURITY_PROTOCOLS},
    "The security protocol of each listener name. Listeners in use must be PLAINTEXT: there is no other yet.",
    LOW,
)
INTER_BROKER_LISTENER_NAME = _optional(
    "inter.broker.listener.name",
    STRING,
    "The listener through which brokers reach each other. Without it, the one called PLAINTEXT, else the "
    "first.",
)
SOCKET_REQUEST_MAX_BYTES = _setting(
    "socket.request.max.bytes",
    int32(at_least=1),
    100 * 1024 * 1024,
    "The largest request. The connection of a larger one is closed before memory is set aside for it.",
    HIGH,
)
MAX_CONNECTIONS = _setting(
    "max.connections",
    int32(at_least=1),
    2000,
    "The most connections at a time; one more is closed at once. Kafka's default is no limit.",
    update_mode=CLUSTER_WIDE,
)
MAX_CONNECTIONS_PER_IP = _setting(
    "max.connections.per.ip",
    int32(at_least=0),
    1000,
    "The most connections at a time from one address. Kafka's default is no limit.",
    update_mode=CLUSTER_WIDE,
)
CONNECTIONS_MAX_IDLE_MS = _setting(
    "connections.max.idle.ms",
    int64(),
    10 * 60 * 1000,
    "A connection without a request for this long is closed. A negative number keeps it for ever.",
)
FRAME_TIMEOUT_MS = _setting(
    "kbus.request.frame.timeout.ms",
    int32(at_least=1),
    30_000,
    "The time in which a request must have arrived whole, from its first byte. Slower ones are cut off.",
)
QUEUED_MAX_REQUESTS_PER_CONNECTION = _setting(
    "kbus.connection.queued.max.requests",
    int32(at_least=1),
    100,
    "Requests of one connection that may wait for their responses; at that many, no more are read from it.",
)

# ZooKeeper

ZOOKEEPER_CONNECT = _optional(
    "zookeeper.connect",
    ZOOKEEPER_ADDRESS,
    "The ZooKeeper ensemble, as host:port,host:port/chroot. Without it the broker starts one of its own.",
    HIGH,
)
ZOOKEEPER_SESSION_TIMEOUT_MS = _setting(
    "zookeeper.session.timeout.ms",
    int32(at_least=1),
    6000,
    "A broker that ZooKeeper has not heard of for this long is dead. Kafka's default is 18000; 6000 suits a "
    "cluster on one machine, where a quick failover matters more than a slow network.",
    HIGH,
)
ZOOKEEPER_CONNECTION_TIMEOUT_MS = _optional(
    "zookeeper.connection.timeout.ms",
    int32(at_least=1),
    "How long to wait for ZooKeeper at start. Without it, zookeeper.session.timeout.ms.",
    HIGH,
)

# Topics

NUM_PARTITIONS = _setting(
    "num.partitions", int32(at_least=1), 1, "Partitions of a topic that is created without a number of them."
)
DEFAULT_REPLICATION_FACTOR = _setting(
    "default.replication.factor",
    int32(at_least=1, at_most=32767),
    1,
    "Replicas of each partition of a topic that is created without a number of them.",
)
AUTO_CREATE_TOPICS_ENABLE = _setting(
    "auto.create.topics.enable", BOOLEAN, True, "Create a topic when a client first asks for it.", HIGH
)
DELETE_TOPIC_ENABLE = _setting(
    "delete.topic.enable", BOOLEAN, True, "Let clients delete topics. If not, they are told so.", HIGH
)
MIN_INSYNC_REPLICAS = _for_topics("min.insync.replicas", int32(at_least=1), 1, "min.insync.replicas")
UNCLEAN_LEADER_ELECTION_ENABLE = _for_topics(
    "unclean.leader.election.enable", BOOLEAN, False, "unclean.leader.election.enable"
)
MESSAGE_MAX_BYTES = _for_topics("message.max.bytes", int32(at_least=0), 1024 * 1024 + 12, "max.message.bytes")
_CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
COMPRESSION_TYPE = _for_topics("compression.type", one_of(*_CODECS), "producer", "compression.type")
COMPRESSION_GZIP_LEVEL = _for_topics(
    "compression.gzip.level", int32(at_least=1, at_most=9, also=-1), -1, "compression.gzip.level", "", MEDIUM
)
COMPRESSION_LZ4_LEVEL = _for_topics(
    "compression.lz4.level", int32(at_least=1, at_most=17), 9, "compression.lz4.level", "", MEDIUM
)
COMPRESSION_ZSTD_LEVEL = _for_topics(
    "compression.zstd.level", int32(at_least=-131072, at_most=22), 3, "compression.zstd.level", "", MEDIUM
)

# Logs: the defaults of topic settings

LOG_SEGMENT_BYTES = _for_topics("log.segment.bytes", int32(at_least=14), 1024**3, "segment.bytes")
LOG_ROLL_MS: BrokerSetting[int | None] = _for_topics(
    "log.roll.ms", int64(at_least=1), None, "segment.ms", "Without it, log.roll.hours."
)
LOG_ROLL_HOURS = _for_topics_in(
    "hours", "log.roll.hours", int32(at_least=1), 168, "segment.ms", "log.roll.ms"
)
LOG_ROLL_JITTER_MS: BrokerSetting[int | None] = _for_topics(
    "log.roll.jitter.ms", int64(at_least=0), None, "segment.jitter.ms", "Without it, log.roll.jitter.hours."
)
LOG_ROLL_JITTER_HOURS = _for_topics_in(
    "hours", "log.roll.jitter.hours", int32(at_least=0), 0, "segment.jitter.ms", "log.roll.jitter.ms"
)
LOG_INDEX_SIZE_MAX_BYTES = _for_topics(
    "log.index.size.max.bytes", int32(at_least=4), 10 * 1024 * 1024, "segment.index.bytes", "", MEDIUM
)
LOG_INDEX_INTERVAL_BYTES = _for_topics(
    "log.index.interval.bytes", int32(at_least=0), 4096, "index.interval.bytes", "", MEDIUM
)
LOG_FLUSH_INTERVAL_MESSAGES = _for_topics(
    "log.flush.interval.messages", int64(at_least=1), _MAX_INT64, "flush.messages"
)
LOG_FLUSH_INTERVAL_MS: BrokerSetting[int | None] = _for_topics(
    "log.flush.interval.ms",
    int64(at_least=0),
    None,
    "flush.ms",
    "Without it, log.flush.scheduler.interval.ms.",
)
LOG_FLUSH_SCHEDULER_INTERVAL_MS = _setting(
    "log.flush.scheduler.interval.ms",
    int64(at_least=1),
    _MAX_INT64,
    "How often to look for logs whose flush.ms has passed.",
    HIGH,
)
LOG_RETENTION_MS: BrokerSetting[int | None] = _for_topics(
    "log.retention.ms",
    int64(at_least=1, also=-1),
    None,
    "retention.ms",
    "Without it, log.retention.minutes, then log.retention.hours.",
)
LOG_RETENTION_MINUTES: BrokerSetting[int | None] = _for_topics_in(
    "minutes",
    "log.retention.minutes",
    int32(at_least=1, also=-1),
    None,
    "retention.ms",
    "log.retention.ms",
)
LOG_RETENTION_HOURS = _for_topics_in(
    "hours", "log.retention.hours", int32(at_least=1, also=-1), 168, "retention.ms", "log.retention.minutes"
)
LOG_RETENTION_BYTES = _for_topics("log.retention.bytes", int64(), -1, "retention.bytes")
LOG_CLEANUP_POLICY: BrokerSetting[tuple[str, ...]] = _for_topics(
    "log.cleanup.policy", some_of("compact", "delete"), ("delete",), "cleanup.policy", "", MEDIUM
)
LOG_CLEANER_MIN_CLEANABLE_RATIO = _for_topics(
    "log.cleaner.min.cleanable.ratio", double(0, 1), 0.5, "min.cleanable.dirty.ratio", "", MEDIUM
)
LOG_CLEANER_DELETE_RETENTION_MS = _for_topics(
    "log.cleaner.delete.retention.ms", int64(at_least=0), 86_400_000, "delete.retention.ms", "", MEDIUM
)
LOG_CLEANER_MIN_COMPACTION_LAG_MS = _for_topics(
    "log.cleaner.min.compaction.lag.ms", int64(at_least=0), 0, "min.compaction.lag.ms", "", MEDIUM
)
LOG_CLEANER_MAX_COMPACTION_LAG_MS = _for_topics(
    "log.cleaner.max.compaction.lag.ms", int64(at_least=1), _MAX_INT64, "max.compaction.lag.ms", "", MEDIUM
)
LOG_SEGMENT_DELETE_DELAY_MS = _for_topics(
    "log.segment.delete.delay.ms", int64(at_least=0), 60_000, "file.delete.delay.ms"
)
LOG_PREALLOCATE = _for_topics("log.preallocate", BOOLEAN, False, "preallocate", "", MEDIUM)
LOG_MESSAGE_TIMESTAMP_TYPE = _for_topics(
    "log.message.timestamp.type",
    one_of("CreateTime", "LogAppendTime"),
    "CreateTime",
    "message.timestamp.type",
    "",
    MEDIUM,
)
LOG_MESSAGE_TIMESTAMP_BEFORE_MAX_MS = _for_topics(
    "log.message.timestamp.before.max.ms",
    int64(at_least=0),
    _MAX_INT64,
    "message.timestamp.before.max.ms",
    "",
    MEDIUM,
)
LOG_MESSAGE_TIMESTAMP_AFTER_MAX_MS = _for_topics(
    "log.message.timestamp.after.max.ms",
    int64(at_least=0),
    _MAX_INT64,
    "message.timestamp.after.max.ms",
    "",
    MEDIUM,
)

# Logs: the node's own work on them

LOG_RETENTION_CHECK_INTERVAL_MS = _setting(
    "log.retention.check.interval.ms",
    int64(at_least=1),
    300_000,
    "How often to look for segments that retention.ms or retention.bytes lets go.",
)
LOG_FLUSH_OFFSET_CHECKPOINT_INTERVAL_MS = _setting(
    "log.flush.offset.checkpoint.interval.ms",
    int32(at_least=1),
    60_000,
    "How often to write down the recovery points: where a log needs no checking after a crash.",
    HIGH,
)
LOG_FLUSH_START_OFFSET_CHECKPOINT_INTERVAL_MS = _setting(
    "log.flush.start.offset.checkpoint.interval.ms",
    int32(at_least=1),
    60_000,
    "How often to write down the first offsets of logs from which records were deleted.",
    HIGH,
)
PRODUCER_ID_EXPIRATION_MS = _setting(
    "producer.id.expiration.ms",
    int32(at_least=1),
    86_400_000,
    "The sequence numbers of an idempotent producer are forgotten this long after its last write to a "
    "partition.",
    LOW,
    CLUSTER_WIDE,
)
TRANSACTIONAL_ID_EXPIRATION_MS = _setting(
    "transactional.id.expiration.ms",
    int32(at_least=1),
    7 * 86_400_000,
    "A transactional id is forgotten this long after its last transaction.",
    HIGH,
)

# Fetching and replication

FETCH_MAX_BYTES = _setting(
    "fetch.max.bytes", int32(at_least=1024), 55 * 1024 * 1024, "The most bytes in one answer to a fetch."
)
MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS = _setting(
    "max.incremental.fetch.session.cache.slots",
    int32(at_least=0),
    1000,
    "Incremental fetch sessions (KIP-227) to keep; the least used make room for new ones.",
)
REPLICA_LAG_TIME_MAX_MS = _setting(
    "replica.lag.time.max.ms",
    int64(at_least=1),
    30_000,
    "A follower that has not caught up with its leader for this long leaves the in-sync replicas.",
    HIGH,
)
REPLICA_FETCH_MAX_BYTES = _setting(
    "replica.fetch.max.bytes",
    int32(at_least=0),
    1024 * 1024,
    "The most bytes of a partition in a follower's fetch.",
)
REPLICA_FETCH_RESPONSE_MAX_BYTES = _setting(
    "replica.fetch.response.max.bytes",
    int32(at_least=0),
    10 * 1024 * 1024,
    "The most bytes in one answer to a follower's fetch.",
)
REPLICA_FETCH_WAIT_MAX_MS = _setting(
    "replica.fetch.wait.max.ms",
    int32(at_least=0),
    500,
    "How long a leader holds a follower's fetch that finds nothing. At most replica.lag.time.max.ms.",
    HIGH,
)
REPLICA_FETCH_MIN_BYTES = _setting(
    "replica.fetch.min.bytes", int32(at_least=0), 1, "Bytes that a follower's fetch waits for.", HIGH
)
REPLICA_FETCH_BACKOFF_MS = _setting(
    "replica.fetch.backoff.ms",
    int32(at_least=0),
    1000,
    "How long a follower waits after a fetch that failed.",
)
REPLICA_SOCKET_TIMEOUT_MS = _setting(
    "replica.socket.timeout.ms",
    int32(at_least=1),
    30_000,
    "How long a follower waits for an answer. At least replica.fetch.wait.max.ms.",
    HIGH,
)
REPLICA_HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS = _setting(
    "replica.high.watermark.checkpoint.interval.ms",
    int64(at_least=1),
    5000,
    "How often to write down the high watermarks.",
    HIGH,
)

SETTINGS: dict[str, BrokerSetting[Any]] = {
    value.name: value for value in list(globals().values()) if isinstance(value, BrokerSetting)
}
