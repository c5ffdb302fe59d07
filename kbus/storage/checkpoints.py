"""Kafka's small text files: checkpoints, partition.metadata, meta.properties, the clean-shutdown marker."""

import base64
import binascii
import contextlib
import json
import os
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kbus.storage.disk import Disk
from kbus.storage.layout import is_valid_topic
from kbus.types import BrokerId, LeaderEpoch, Offset, TopicPartition

_VERSION = 0


class UnreadableFile(Exception):  # noqa: N818
    """A file is there and does not hold what it should. Whoever catches it must not delete data for it."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be read: {reason}")


def _read_text(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise UnreadableFile(path, "it is not text") from error


def _read_entries(path: str) -> list[list[str]] | None:
    """The lines of a checkpoint split into words. None if there is no file, or an empty one."""
    text = _read_text(path)
    if not text:
        return None
    lines = text.splitlines()
    try:
        version, count = int(lines[0]), int(lines[1])
    except (ValueError, IndexError) as error:
        raise UnreadableFile(path, "it does not begin with a version and a count") from error
    if version != _VERSION:
        raise UnreadableFile(path, f"its version is {version}, not {_VERSION}")
    entries = [line.split() for line in lines[2:]]
    if len(entries) != count:
        raise UnreadableFile(path, f"it announces {count} entries and holds {len(entries)}")
    return entries


def _checkpoint(lines: Iterable[str]) -> bytes:
    entries = list(lines)
    return "".join(f"{line}\n" for line in (str(_VERSION), str(len(entries)), *entries)).encode()


def read_offsets(path: str) -> dict[TopicPartition, Offset]:
    """A checkpoint of offsets by partition; empty if there is none yet."""
    offsets = {}
    for words in _read_entries(path) or ():
        try:
            topic, partition, offset = words
            entry = TopicPartition(topic, int(partition)), Offset(int(offset))
        except ValueError as error:
            raise UnreadableFile(path, f"its entry {' '.join(words)!r} is malformed") from error
        if not is_valid_topic(topic) or entry[0].partition < 0 or entry[1] < 0:
            raise UnreadableFile(path, f"its entry {' '.join(words)!r} is malformed")
        offsets[entry[0]] = entry[1]
    return offsets


def write_offsets(disk: Disk, path: str, offsets: Mapping[TopicPartition, Offset]) -> None:
    lines = (f"{partition.topic} {partition.partition} {offset}" for partition, offset in offsets.items())
    disk.replace(path, _checkpoint(lines))


def read_epochs(path: str) -> list[tuple[LeaderEpoch, Offset]] | None:
    """(epoch, start offset), both rising. None if there is no such file, or an empty one."""
    entries = _read_entries(path)
    if entries is None:
        return None
    epochs: list[tuple[LeaderEpoch, Offset]] = []
    for words in entries:
        try:
            epoch, start = map(int, words)
        except ValueError as error:
            raise UnreadableFile(path, f"its entry {' '.join(words)!r} is malformed") from error
        if epoch < 0 or start < 0 or (epochs and (epoch <= epochs[-1][0] or start <= epochs[-1][1])):
            raise UnreadableFile(path, f"its entry {epoch} {start} is out of order")
        epochs.append((LeaderEpoch(epoch), Offset(start)))
    return epochs


def write_epochs(disk: Disk, path: str, epochs: Iterable[tuple[LeaderEpoch, Offset]]) -> None:
    disk.replace(path, _checkpoint(f"{epoch} {start}" for epoch, start in epochs))


def encode_uuid(value: uuid.UUID) -> str:
    """As Kafka prints ids: base64 for URLs without padding."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_uuid(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(bytes=base64.b64decode(text + "==", altchars=b"-_", validate=True))
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{text!r} is not an id") from error


def read_topic_id(path: str) -> uuid.UUID | None:
    """The topic id in a partition.metadata file; None if there is no such file."""
    text = _read_text(path)
    if text is None:
        return None
    fields = dict(line.partition(":")[::2] for line in text.splitlines())
    try:
        version = int(fields["version"])
        topic_id = decode_uuid(fields["topic_id"].strip())
    except (KeyError, ValueError) as error:
        raise UnreadableFile(path, "it does not hold a version and a topic id") from error
    if version < _VERSION or not topic_id.int:
        raise UnreadableFile(path, "its version or its topic id is not valid")
    return topic_id


def write_topic_id(disk: Disk, path: str, topic_id: uuid.UUID) -> None:
    disk.replace(path, f"version: {_VERSION}\ntopic_id: {encode_uuid(topic_id)}".encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaProperties:
    """Whose directory this is."""

    broker_id: BrokerId
    cluster_id: str


def read_meta_properties(path: str) -> MetaProperties | None:
    text = _read_text(path)
    if text is None:
        return None
    lines = (line.strip() for line in text.splitlines())
    fields = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    try:
        if int(fields["version"]) != _VERSION:
            raise UnreadableFile(path, f"its version is {fields['version']}, not {_VERSION}")
        return MetaProperties(broker_id=BrokerId(int(fields["broker.id"])), cluster_id=fields["cluster.id"])
    except (KeyError, ValueError) as error:
        raise UnreadableFile(path, "version, broker.id or cluster.id is missing or malformed") from error


def write_meta_properties(disk: Disk, path: str, properties: MetaProperties) -> None:
    text = f"version={_VERSION}\nbroker.id={properties.broker_id}\ncluster.id={properties.cluster_id}\n"
    disk.replace(path, text.encode())


def write_clean_shutdown(disk: Disk, path: str, broker_epoch: int) -> None:
    disk.replace(path, json.dumps({"version": _VERSION, "brokerEpoch": broker_epoch}).encode())


def take_clean_shutdown(disk: Disk, path: str) -> bool:
    """Whether the last stop was clean. The marker goes first: a crash while loading must not look clean."""
    try:
        disk.unlink(path)
    except FileNotFoundError:
        return False
    disk.fsync_directory(os.path.dirname(path))
    return True


def quarantine(disk: Disk, path: str) -> str:
    """Move an unreadable file aside under a name that nothing reads; the new name."""
    number = 0
    target = path + ".unreadable"
    while os.path.exists(target):
        number += 1
        target = f"{path}.unreadable.{number}"
    with contextlib.suppress(FileNotFoundError):
        disk.rename(path, target)
    return target
