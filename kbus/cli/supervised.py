"""What the commands about a local cluster share: which one is meant, its supervisor, its errors."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kbus.cli.output import CliError

if TYPE_CHECKING:
    from kbus.cluster.folder import ClusterFolder

NameOption = Annotated[
    str | None,
    typer.Option(
        "--name",
        metavar="NAME",
        help="Which local cluster. Default: the one started last.",
        show_default=False,
    ),
]
BrokerArgument = Annotated[int, typer.Argument(metavar="N", min=1, help="The broker's number.")]


def folder_of(name: str | None, *, must_exist: bool = True) -> "ClusterFolder":
    from kbus.cluster.folder import ClusterFolder
    from kbus.cluster.spec import SpecError

    try:
        folder = ClusterFolder.chosen(name)
    except SpecError as error:
        raise CliError(str(error), exit_code=2) from None
    if must_exist and not folder.is_cluster:
        raise CliError(
            f"There is no local cluster {folder.name}.",
            "Start it with `kbus cluster start"
            f"{'' if name is None else f' --name {name}'}`; `kbus cluster list` shows those there are.",
        )
    return folder


def call(
    folder: "ClusterFolder",
    command: str,
    *,
    launch: bool = False,
    on_event: Callable[[dict[str, Any]], None] = lambda _: None,
    **arguments: Any,
) -> Any:
    """Asks the cluster's supervisor, which is started for it with `launch`."""
    from kbus.cluster.control import CommandRefusedError, Control, SupervisorGoneError
    from kbus.cluster.launch import LaunchError, supervised
    from kbus.cluster.spec import SpecError

    while True:
        try:
            control = supervised(folder) if launch else Control(folder)
            return control.call(command, on_event=on_event, **arguments)
        except SupervisorGoneError:
            if not launch:
                raise NotRunningError(folder.name) from None
            # The one that was there has gone meanwhile: start another.
        except (CommandRefusedError, LaunchError, SpecError) as error:
            raise CliError(str(error)) from None


class NotRunningError(CliError):
    def __init__(self, name: str) -> None:
        super().__init__(
            f"Cluster {name} does not run.", f"Start it with `kbus cluster start --name {name}`."
        )


def broker_row(broker: dict[str, Any]) -> dict[str, Any]:
    """A member as it is shown, with what its process takes."""
    from kbus.cluster.memory import memory_bytes

    pid = broker["pid"]
    return {**broker, "memory_bytes": None if pid is None else memory_bytes(pid)}
