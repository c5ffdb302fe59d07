"""Names of files and folders on disk: Kafka's."""

import re
import uuid

from kbus.types import Offset, TopicPartition

LOG = ".log"
OFFSET_INDEX = ".index"
TIME_INDEX = ".timeindex"
TXN_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
SEGMENT_SUFFIXES = (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX)

DELETED = ".deleted"
"""Set on files that wait for their removal; a restart removes them."""
CLEANED = ".cleaned"
SWAP = ".swap"
DAMAGED = ".damaged"
"""Set on bytes that recovery cut off although they may hold good records. Nothing reads or removes them."""

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
CLEAN_SHUTDOWN_MARKER = ".kafka_cleanshutdown"
META_PROPERTIES = "meta.properties"
LOCK = ".lock"

DELETE_FOLDER_SUFFIX = "-delete"
STRAY_FOLDER_SUFFIX = "-stray"
MAX_TOPIC_LENGTH = 249
_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
_DELETE_FOLDER = re.compile(r"\S+-\S+\.\S+" + DELETE_FOLDER_SUFFIX)
_OFFSET_DIGITS = 20


def file_name(offset: int, suffix: str) -> str:
    return f"{offset:0{_OFFSET_DIGITS}d}{suffix}"


def offset_of(name: str, suffix: str) -> Offset | None:
    """The offset in the name of a segment's file or snapshot; None if it is not one of that kind."""
    digits = name.removesuffix(suffix)
    if digits == name or len(digits) != _OFFSET_DIGITS or not _is_number(digits):
        return None
    return Offset(int(digits))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def is_valid_topic(name: str) -> bool:
    return 0 < len(name) <= MAX_TOPIC_LENGTH and name not in (".", "..") and bool(_TOPIC.fullmatch(name))


def partition_of_folder(name: str) -> TopicPartition | None:
    """What the folder holds; None if its name is not `topic-partition`."""
    topic, dash, digits = name.rpartition("-")
    if not dash or not is_valid_topic(topic) or not _is_number(digits):
        return None
    partition = int(digits)
    if str(partition) != digits or partition > 2**31 - 1:
        return None
    return TopicPartition(topic, partition)


def is_delete_folder(name: str) -> bool:
    """Whether a partition was deleted and only its files remain to be removed."""
    return bool(_DELETE_FOLDER.fullmatch(name))


def delete_folder_name(partition: TopicPartition) -> str:
    return _marked_folder_name(partition, DELETE_FOLDER_SUFFIX)


def stray_folder_name(partition: TopicPartition) -> str:
    return _marked_folder_name(partition, STRAY_FOLDER_SUFFIX)


def _marked_folder_name(partition: TopicPartition, mark: str) -> str:
    """At most 255 characters, as Kafka cuts it: a folder name may not be longer."""
    suffix = f"-{partition.partition}.{uuid.uuid4().hex}{mark}"
    return partition.topic[: 255 - len(suffix)] + suffix
