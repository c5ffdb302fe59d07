"""`kbus segment`: look into the files of a log, of kbus or of Kafka, live or stopped."""

from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import Annotated

import typer

from kbus.cli.app import new_app
from kbus.cli.output import (
    CliError,
    OutputFormat,
    OutputOption,
    format_size,
    format_time,
    note,
    print_json,
    print_json_line,
    print_table,
    progress,
)
from kbus.cli.segment_diff import diff

app = new_app(
    help="List, dump and verify the files of a partition's log, of kbus or of Kafka, live or stopped, and "
    "compare those of its replicas."
)

TargetsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PATH|TOPIC[:PARTITION]",
        show_default=False,
        help="Segment files, folders of partitions, log directories, or topics of the current local cluster. "
        "Default: all of that cluster.",
    ),
]


@app.command("list")
def list_segments(targets: TargetsArgument = None, output: OutputOption = OutputFormat.TABLE) -> None:
    """List segments: offsets, time range, sizes."""
    from kbus.cli.segment_files import find
    from kbus.cli.segment_list import summarize

    summaries = [summary for partition in find(targets or ()) for summary in summarize(partition)]
    if output is OutputFormat.JSON:
        print_json([summary._asdict() for summary in summaries])
        return
    print_table(
        ("partition", "segment", "first", "last", "from", "to", "log", "index", "timeindex", "state"),
        [
            (
                summary.partition,
                summary.file.name,
                summary.first_offset,
                summary.last_offset,
                format_time(summary.first_timestamp),
                format_time(summary.max_timestamp),
                format_size(summary.log_bytes),
                None if summary.index_bytes is None else format_size(summary.index_bytes),
                None if summary.timeindex_bytes is None else format_size(summary.timeindex_bytes),
                summary.state,
            )
            for summary in summaries
        ],
        empty="There are no segments.",
    )


@app.command()
def dump(
    targets: TargetsArgument = None,
    records: Annotated[bool, typer.Option("--records", "-r", help="The records of each batch, too.")] = False,
    index: Annotated[
        bool,
        typer.Option(
            "--index", help="Index entries, producer snapshots and leader epochs instead of batches."
        ),
    ] = False,
    offset: Annotated[
        int | None, typer.Option(min=0, help="Start with the batch that holds this offset.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--max", "-n", min=1, help="At most so many batches or entries.")
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the batches of segments, with all fields of their headers, or with --index what lies beside them.

    An index, snapshot or leader-epoch-checkpoint file can also be named directly. JSON comes as a line for
    each batch or entry. A batch with a wrong CRC and a damaged end are shown as such; exit code 1 then."""
    from kbus.cli.segment_dump import batches, index_entries, is_index_file, partition_index_files
    from kbus.cli.segment_files import find
    from kbus.cli.segment_text import Damage, print_dump

    names = targets or []
    direct = [name for name in names if Path(name).is_file() and is_index_file(Path(name))]
    others = [name for name in names if name not in direct]
    partitions = find(others) if others or not direct else []
    files: list[tuple[Path, int | None]] = [(Path(name), None) for name in direct]
    if index:
        files += [item for partition in partitions for item in partition_index_files(partition)]
        segments = []
    else:
        segments = [
            segment
            for partition in partitions
            for segment in partition.segments
            if offset is None or segment.next_base_offset is None or segment.next_base_offset > offset
        ]
    rows = chain(
        chain.from_iterable(index_entries(path, base_offset) for path, base_offset in files),
        chain.from_iterable(batches(segment, records=records, from_offset=offset) for segment in segments),
    )
    damage = Damage()
    shown = damage.watch(islice(rows, limit))
    if output is OutputFormat.JSON:
        for row in shown:
            print_json_line(row)
    else:
        print_dump(shown)
    if damage.seen:
        raise typer.Exit(1)


@app.command()
def verify(
    targets: TargetsArgument = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Open every batch and check its records, too. Slow.")
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Check checksums, lengths, the order of offsets and epochs, indexes and snapshots.

    A tail that a write in progress or a crash left is no damage, and is reported as a torn tail. Exit code 1
    if anything is damaged, with file, position and offset."""
    from kbus.cli.segment_files import find
    from kbus.cli.segment_verify import PartitionVerifier

    partitions = find(targets or ())
    reports, problems = [], []
    total_bytes = sum(_size(segment.log) for partition in partitions for segment in partition.segments)
    with progress("Verifying", total_bytes) as advance:
        for partition in partitions:
            verifier = PartitionVerifier(partition, deep=deep, advance=advance)
            reports += [(partition.name, report) for report in verifier.run()]
            problems += verifier.problems
    if output is OutputFormat.JSON:
        print_json(
            {
                "sound": not problems,
                "segments": [{"partition": name, **asdict(report)} for name, report in reports],
                "problems": [problem._asdict() for problem in problems],
            }
        )
    else:
        print_table(
            ("partition", "segment", "first", "last", "batches", "records", "size", "state"),
            [
                (
                    name,
                    report.file.name,
                    report.first_offset,
                    report.last_offset,
                    report.batches,
                    report.records,
                    format_size(report.size_bytes),
                    report.state,
                )
                for name, report in reports
            ],
            empty="There are no segments.",
        )
        for _, report in reports:
            for text in report.notes:
                note(f"{report.file}: {text}.")
        if problems:
            typer.echo()
            print_table(("file", "position", "offset", "problem"), problems)
    if problems:
        files = len({problem.file for problem in problems})
        raise CliError(
            f"{len(problems)} problem{'s'[: len(problems) > 1]} in {files} file{'s'[: files > 1]}."
        )


app.command()(diff)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
