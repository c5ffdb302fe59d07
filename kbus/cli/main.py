"""`kbus`: the table of commands. A command's module is imported only when it runs or shows its own help."""

import os
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from kbus import __version__
from kbus.cli.app import Lazy, LazyGroup, new_app


class _Root(LazyGroup):
    lazy_commands = {  # noqa: RUF012 - never changed
        "cluster": Lazy("kbus.cli.cluster", "Start, watch, stop and remove clusters on this machine."),
        "broker": Lazy("kbus.cli.broker", "Run a broker, or see to those of a local cluster."),
        "zookeeper": Lazy("kbus.cli.zookeeper", "Run a ZooKeeper server and look into one."),
        "topic": Lazy("kbus.cli.topic", "Create, list, describe, alter and delete topics."),
        "console-produce": Lazy("kbus.cli.console_produce", "Send lines or JSON to a topic."),
        "console-consume": Lazy("kbus.cli.console_consume", "Print the records of a topic."),
        "isr": Lazy("kbus.cli.isr", "Show leaders and in-sync replicas, or watch them change."),
        "segment": Lazy("kbus.cli.segment", "List, dump, verify and compare the files of partitions' logs."),
        "chaos": Lazy("kbus.cli.chaos", "Break a local cluster on purpose, and see what it does about it."),
    }


app = new_app(help="A replicated message bus that speaks Kafka's protocol.", cls=_Root, add_completion=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kbus {__version__}")
        raise typer.Exit


@app.callback()
def root(
    debug: Annotated[
        bool, typer.Option("--debug", envvar="KBUS_DEBUG", help="Show a traceback when a command fails.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """The options have callbacks or are read by the group: nothing is left to do."""


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and exits: 0 well, 1 failed, 2 used badly, 130 interrupted."""
    if "_KBUS_COMPLETE" in os.environ:
        # typer would import rich, 80 ms, to strip markup that kbus does not use from its help lines.
        sys.modules["rich"] = None  # type: ignore[assignment]
    sys.exit(app(args, prog_name="kbus"))
