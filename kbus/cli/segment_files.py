"""Which files a segment command is about: a file, a partition's folder, a log directory, or a topic."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from kbus.cli.context import local_cluster
from kbus.cli.output import CliError
from kbus.storage import layout
from kbus.storage.layout import partition_of_folder

_SEGMENT_FILE = re.compile(r"(?P<stem>.+?)\.(?:log|index|timeindex|txnindex)(?P<ending>\.\w+)?")


class SegmentFiles(NamedTuple):
    log: Path
    base_offset: int | None
    """From the name; None if the file is not named as a segment."""
    next_base_offset: int | None
    """That of the following segment; None for the last one, the only one that may still grow."""

    def sibling(self, suffix: str) -> Path:
        """The index file of the kind; it may not exist. A `.deleted` log has `.deleted` indexes."""
        return self.log.with_name(self.log.name.replace(layout.LOG, suffix, 1))


class PartitionFiles(NamedTuple):
    name: str
    folder: Path
    segments: Sequence[SegmentFiles]
    snapshots: Sequence[Path] = ()

    @property
    def epochs(self) -> Path:
        return self.folder / layout.LEADER_EPOCH_CHECKPOINT


def find(targets: Iterable[str]) -> list[PartitionFiles]:
    """The partitions that `targets` name; without any, all of the current local cluster."""
    names = list(targets)
    if not names:
        cluster = [partition for folder in _cluster_folders() for partition in _partitions_in(folder)]
        return sorted(cluster, key=_by_partition)
    return [partition for name in names for partition in _find_one(name)]


def _find_one(target: str) -> list[PartitionFiles]:
    path = Path(target)
    if path.is_dir():
        found = sorted(_partitions_in(path), key=_by_partition)
        if not found:
            raise CliError(f"There are no segments in {path} or in the folders in it.")
        return found
    if path.exists():
        return [_of_file(path)]
    if os.sep in target:
        raise CliError(f"{target}: no such file or folder.")
    return _of_topic(target)


def _of_file(path: Path) -> PartitionFiles:
    match = _SEGMENT_FILE.fullmatch(path.name)
    if match is None:
        raise CliError(f"{path} is not a segment.", "Name a .log or index file, or a folder of them.")
    log = path.with_name(match["stem"] + layout.LOG + (match["ending"] or ""))
    if not log.exists():
        raise CliError(
            f"{path} belongs to {log.name}, which is not there.", "`kbus segment dump` can show it."
        )
    for segment in segments_in(path.parent):
        if segment.log == log:
            return PartitionFiles(path.parent.resolve().name, path.parent, [segment])
    return PartitionFiles(
        path.parent.resolve().name, path.parent, [SegmentFiles(log, _base_offset(log), None)]
    )


def _of_topic(target: str) -> list[PartitionFiles]:
    topic, colon, number = target.rpartition(":")
    if not colon:
        topic, number = target, ""
    elif not number.isdecimal():
        raise CliError(f"{target!r} is neither a path nor TOPIC:PARTITION.", exit_code=2)
    found = []
    for folder in _cluster_folders():
        for partition in _partitions_in(folder):
            named = partition_of_folder(partition.name)
            if named is not None and named.topic == topic and number in ("", str(named.partition)):
                found.append(partition)
    if not found:
        what = f"partition {number} of topic {topic!r}" if number else f"topic {topic!r}"
        raise CliError(f"{target}: no such file, and the current local cluster has no {what} on disk.")
    return sorted(found, key=_by_partition)


def _cluster_folders() -> list[Path]:
    cluster = local_cluster()
    if cluster is None:
        raise CliError(
            "No local cluster is known whose files could be looked for.",
            "Name a file or a folder, or start a cluster with `kbus broker start`.",
        )
    return [folder for folder in cluster.log_dirs if folder.is_dir()]


def _partitions_in(folder: Path) -> Iterator[PartitionFiles]:
    """The folder's own segments, and those of the folders in it."""
    for candidate in (folder, *(Path(entry.path) for entry in os.scandir(folder) if entry.is_dir())):
        segments = segments_in(candidate)
        if segments:
            snapshots = sorted(path for path in candidate.glob("*" + layout.SNAPSHOT))
            yield PartitionFiles(candidate.resolve().name, candidate, segments, snapshots)


def segments_in(folder: Path) -> list[SegmentFiles]:
    logs = sorted(
        (base_offset, path)
        for path in folder.glob("*" + layout.LOG)
        if (base_offset := layout.offset_of(path.name, layout.LOG)) is not None
    )
    nexts = [base_offset for base_offset, _ in logs[1:]]
    return [
        SegmentFiles(path, base_offset, next_base_offset)
        for (base_offset, path), next_base_offset in zip_longest(logs, nexts)
    ]


def _base_offset(log: Path) -> int | None:
    digits = log.name.partition(".")[0]
    return layout.offset_of(digits + layout.LOG, layout.LOG)


def _by_partition(partition: PartitionFiles) -> tuple[str, int]:
    named = partition_of_folder(partition.name)
    return (partition.name, -1) if named is None else named
