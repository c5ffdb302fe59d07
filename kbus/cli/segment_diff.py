"""`kbus segment diff`: whether all replicas of a partition hold the same bytes, up to the high watermark."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from kbus.cli.output import (
    CliError,
    OutputFormat,
    OutputOption,
    format_size,
    note,
    print_json,
    print_table,
    progress,
)
from kbus.cli.supervised import NameOption

if TYPE_CHECKING:
    from kbus.cli.segment_compare import ReplicaLog
    from kbus.client.local_cluster import LocalCluster
    from kbus.types import TopicPartition


class Truth(NamedTuple):
    """What the logs are held against."""

    high_watermark: int
    source: str
    leader: int | None = None
    isr: frozenset[int] | None = None
    """None if nobody says; then no replica may be behind."""


def diff(
    target: Annotated[
        str, typer.Argument(metavar="TOPIC[:PARTITION]", help="The partition; without a number, partition 0.")
    ],
    name: NameOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Compare the replicas of a partition byte for byte, up to the high watermark.

    The files of a local cluster are read, whether or not it runs. Exit code 1 if a replica differs, or ends
    below the high watermark although it is in the ISR; the first difference is shown with its position."""
    from kbus.cli.segment_compare import compare

    tp = parse_partition(target)
    cluster = _cluster(name)
    logs = _replica_logs(cluster, tp)
    truth = _truth(cluster, tp)
    reference = _reference(logs, truth)
    others = [log for log in logs if log is not reference]
    try:
        total = sum(segment.log.stat().st_size for segment in reference.segments)
        with progress("Comparing", total) as advance:
            compare(reference, others, truth.high_watermark, advance)
    except FileNotFoundError as error:
        raise CliError(
            f"{error.filename} was deleted while it was read, as retention does.", "Compare once more."
        ) from None
    verdicts = {log.broker: _verdict(log, reference, truth) for log in logs}
    _print(tp, truth, logs, verdicts, output)
    bad = [broker for broker, verdict in verdicts.items() if verdict in _BAD]
    if bad:
        brokers = f"broker{'s'[: len(bad) > 1]} {', '.join(map(str, bad))}"
        raise CliError(
            f"The replicas of {_name(tp)} differ below offset {truth.high_watermark}: see {brokers}."
        )


_BAD = ("different", "short", "damaged")


def parse_partition(target: str) -> "TopicPartition":
    from kbus.types import TopicPartition

    topic, colon, number = target.rpartition(":")
    if not colon:
        return TopicPartition(target, 0)
    if not topic or not number.isdecimal():
        raise typer.BadParameter(f"{target!r} is not of the form TOPIC:PARTITION.", param_hint="TOPIC")
    return TopicPartition(topic, int(number))


def _name(tp: "TopicPartition") -> str:
    return f"{tp.topic}-{tp.partition}"


def _cluster(name: str | None) -> "LocalCluster":
    from kbus.cli.context import local_cluster
    from kbus.client.local_cluster import kbus_home, read_cluster

    cluster = local_cluster() if name is None else read_cluster(kbus_home() / name)
    if cluster is None:
        raise CliError(
            "No local cluster is known whose replicas could be compared.",
            "Start one with `kbus cluster start`; `kbus cluster list` shows those there are.",
        )
    return cluster


def _replica_logs(cluster: "LocalCluster", tp: "TopicPartition") -> "list[ReplicaLog]":
    from kbus.cli.segment_compare import ReplicaLog
    from kbus.cli.segment_files import segments_in

    logs = [
        ReplicaLog(broker, segments_in(folder / _name(tp)))
        for folder in cluster.log_dirs
        if (folder / _name(tp)).is_dir() and (broker := _broker_of(folder)) is not None
    ]
    if not logs:
        raise CliError(
            f"Cluster {cluster.name} has no partition {tp.partition} of topic {tp.topic!r} on disk.",
            "`kbus topic list` shows the topics there are.",
        )
    return logs


def _broker_of(folder: Path) -> int | None:
    from kbus.storage import layout
    from kbus.storage.checkpoints import UnreadableFile, read_meta_properties

    try:
        found = read_meta_properties(str(folder / layout.META_PROPERTIES))
    except UnreadableFile as error:
        raise CliError(f"{error}.", "Whose replica it is cannot be told.") from None
    return None if found is None else found.broker_id


def _truth(cluster: "LocalCluster", tp: "TopicPartition") -> Truth:
    """What the leader says; without one, what the brokers wrote down."""
    return asyncio.run(_ask_leader(cluster, tp)) or _from_checkpoints(cluster, tp)


async def _ask_leader(cluster: "LocalCluster", tp: "TopicPartition") -> Truth | None:
    from kbus.cli.context import host_and_port
    from kbus.client.replicas import positions
    from kbus.client.watcher import ANSWER_TIMEOUT_S, NoBrokerAnswersError, Watcher

    servers = [host_and_port(server) for server in cluster.bootstrap_servers.split(",")]
    async with Watcher(servers, topics=[tp.topic], every_s=1.0) as watcher:
        try:
            view = await watcher.all_heard()
        except NoBrokerAnswersError:
            return None
    partition = view.partitions.get(tp)
    if partition is None or partition.leader is None:
        return None
    found = (await positions(view, [tp], timeout_s=ANSWER_TIMEOUT_S))[tp]
    if found.high_watermark is None:
        return None
    return Truth(
        found.high_watermark,
        f"broker {partition.leader}, the leader",
        partition.leader,
        frozenset(partition.isr),
    )


def _from_checkpoints(cluster: "LocalCluster", tp: "TopicPartition") -> Truth:
    """The highest that any replica wrote down: what one knows to be committed is so for all."""
    from kbus.storage import layout
    from kbus.storage.checkpoints import UnreadableFile, read_offsets

    found = []
    for folder in cluster.log_dirs:
        try:
            offsets = read_offsets(str(folder / layout.HIGH_WATERMARK_CHECKPOINT))
        except UnreadableFile as error:
            note(f"{error}.")
            continue
        if offsets and tp in offsets:
            found.append(offsets[tp])
    return Truth(max(found, default=0), "the brokers' checkpoints, as no leader answers")


def _reference(logs: "list[ReplicaLog]", truth: Truth) -> "ReplicaLog":
    for log in logs:
        if log.broker == truth.leader:
            return log
    return max(logs, key=lambda log: sum(segment.log.stat().st_size for segment in log.segments))


def _verdict(log: "ReplicaLog", reference: "ReplicaLog", truth: Truth) -> str:
    if log.difference is not None:
        return "different"
    if log.next_offset >= truth.high_watermark:
        return "reference" if log is reference else "same"
    if log.damage is not None:
        return "damaged"
    if truth.isr is not None and log.broker not in truth.isr:
        return "behind"
    if log is not reference and log.next_offset >= reference.next_offset:
        return "same"  # there was no more to be compared with
    return "short"


def _print(
    tp: "TopicPartition",
    truth: Truth,
    logs: "list[ReplicaLog]",
    verdicts: dict[int, str],
    output: OutputFormat,
) -> None:
    rows: list[dict[str, Any]] = [
        {
            "broker": log.broker,
            "state": verdicts[log.broker],
            "first_offset": log.first_offset,
            "same_up_to": log.next_offset,
            "batches": log.compared_batches,
            "bytes": log.compared_bytes,
            "difference": None if log.difference is None else log.difference._asdict(),
            "damage": log.damage if verdicts[log.broker] == "damaged" else None,
        }
        for log in logs
    ]
    if output is OutputFormat.JSON:
        print_json(
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "same": not any(verdict in _BAD for verdict in verdicts.values()),
                "high_watermark": truth.high_watermark,
                "high_watermark_source": truth.source,
                "replicas": rows,
            }
        )
        return
    note(f"{_name(tp)} up to the high watermark {truth.high_watermark} (from {truth.source}):")
    print_table(
        ("broker", "state", "from", "same up to", "batches", "size"),
        [
            (
                row["broker"],
                row["state"],
                row["first_offset"],
                row["same_up_to"],
                row["batches"],
                format_size(row["bytes"]),
            )
            for row in rows
        ],
    )
    for log in logs:
        if log.difference is not None:
            found = log.difference
            note(
                f"Broker {log.broker}, offset {found.offset}: {found.problem}. First difference at byte "
                f"{found.position} of {found.file}, which is byte {found.reference_position} of "
                f"{found.reference_file}."
            )
        elif verdicts[log.broker] == "damaged":
            note(f"Broker {log.broker}: {log.damage}.")
