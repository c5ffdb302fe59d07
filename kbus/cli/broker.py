"""`kbus broker`: run one."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from kbus.cli.app import new_app
from kbus.cli.context import key_values
from kbus.cli.output import CliError, OutputFormat, OutputOption, print_fields, print_json_line

app = new_app(help="Run a broker.")


@app.callback()
def broker() -> None:
    """Makes this a group although it has one command so far."""


@app.command()
def start(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE.properties", show_default=False, help="Settings, as Kafka's server.properties."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "--override",
            metavar="NAME=VALUE",
            help="A setting over those of the file; may be repeated.",
        ),
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Run a broker in the foreground until Ctrl-C or SIGTERM.

    Without a file it is a complete single node, ZooKeeper included, with its data under $KBUS_HOME
    (default ~/.kbus), and the other commands find it by themselves."""
    overrides = key_values(settings or (), "--set")

    from kbus.node.main import BrokerRefusedError, RunningBroker, run_broker

    def announce(broker: RunningBroker) -> None:
        if output is OutputFormat.JSON:
            print_json_line(asdict(broker))
        else:
            print_fields(
                {
                    f"Broker {broker.broker_id}": f"ready at {broker.bootstrap_servers}",
                    "ZooKeeper": f"{broker.zookeeper}{' (embedded)' if broker.embedded_zookeeper else ''}",
                    "Data": ", ".join(str(path) for path in broker.log_dirs),
                    "Try": "kbus topic create demo --partitions 3",
                    "Stop": "Ctrl-C",
                }
            )
        sys.stdout.flush()

    try:
        raise typer.Exit(run_broker(file, overrides, announce))
    except BrokerRefusedError as error:
        raise CliError(str(error)) from error
