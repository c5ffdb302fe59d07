"""The folder of a local cluster, under $KBUS_HOME: where everything about it is."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kbus.client.local_cluster import current_folder, kbus_home, replace_text
from kbus.cluster.spec import DEFAULT_NAME, ClusterSpec, SpecError, check_name

_MAX_SOCKET_PATH_BYTES: Final = 100
"""The kernel takes 107 on Linux, 103 elsewhere."""


class ClusterFolder:
    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @classmethod
    def named(cls, name: str) -> "ClusterFolder":
        """Raises SpecError if no cluster can have that name."""
        check_name(name)
        return cls(kbus_home() / name)

    @classmethod
    def chosen(cls, name: str | None) -> "ClusterFolder":
        """That of the name; without one, that of the current cluster, or else of the usual name."""
        if name is not None:
            return cls.named(name)
        current = current_folder()
        if current is not None and (folder := cls(current)).is_cluster:
            return folder
        return cls.named(DEFAULT_NAME)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def spec_file(self) -> Path:
        return self.path / "spec.json"

    @property
    def lock_file(self) -> Path:
        """Locked by the supervisor for as long as it lives."""
        return self.path / "supervisor.lock"

    @property
    def pid_file(self) -> Path:
        return self.path / "supervisor.pid"

    @property
    def log_file(self) -> Path:
        return self.path / "supervisor.log"

    @property
    def zookeeper(self) -> Path:
        return self.path / "zookeeper"

    @property
    def zookeeper_log(self) -> Path:
        return self.zookeeper / "zookeeper.log"

    def data(self, broker_id: int) -> Path:
        return self.path / f"broker-{broker_id}" / "data"

    def broker_log(self, broker_id: int) -> Path:
        return self.path / f"broker-{broker_id}" / "broker.log"

    @property
    def is_cluster(self) -> bool:
        return self.spec_file.is_file()

    def read_spec(self) -> ClusterSpec | None:
        """None if there is no cluster. Raises SpecError if the file is damaged."""
        try:
            return ClusterSpec.from_json(self.spec_file.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError as error:
            raise SpecError(
                f"{self.spec_file} is not a description of a cluster ({error}); "
                f"begin anew with `kbus cluster destroy --name {self.name}`."
            ) from None

    def write_spec(self, spec: ClusterSpec) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        replace_text(self.spec_file, spec.to_json())

    @contextmanager
    def socket_path(self) -> Iterator[str]:
        """By which the supervisor's socket can be bound or connected to while the block runs.

        The path of a Unix socket may not be long. Where it would be, the way goes through a descriptor of
        the folder."""
        path = str(self.path / "control.sock")
        if len(os.fsencode(path)) <= _MAX_SOCKET_PATH_BYTES:
            yield path
            return
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{descriptor}/control.sock"
        finally:
            os.close(descriptor)


def all_folders() -> list[ClusterFolder]:
    """Of the clusters of this machine, by name."""
    try:
        entries = sorted(kbus_home().iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder for entry in entries if (folder := ClusterFolder(entry)).is_cluster]
