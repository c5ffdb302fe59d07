"""Where the clusters of this machine live and how their clients find them.

`$KBUS_HOME` (default `~/.kbus`) has a folder a cluster; `current` in it names the folder whose `cluster.json`
says where to connect. Whoever starts a cluster writes both, clients only read them."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

CURRENT_FILE = "current"
CLUSTER_FILE = "cluster.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCluster:
    folder: Path
    bootstrap_servers: str
    zookeeper: str
    log_dirs: tuple[Path, ...] = ()
    """Where the brokers keep their partitions, for tools that read the files."""

    @property
    def name(self) -> str:
        return self.folder.name


def kbus_home() -> Path:
    return Path(os.environ.get("KBUS_HOME") or "~/.kbus").expanduser()


def write_cluster(cluster: LocalCluster, *, make_current: bool = True) -> None:
    """Records where to find `cluster` and, unless told otherwise, makes it the current one."""
    content = asdict(cluster)
    del content["folder"]
    content["log_dirs"] = [str(folder) for folder in cluster.log_dirs]
    cluster.folder.mkdir(parents=True, exist_ok=True)
    replace_text(cluster.folder / CLUSTER_FILE, json.dumps(content, indent=2) + "\n")
    if make_current:
        home = kbus_home()
        home.mkdir(parents=True, exist_ok=True)
        replace_text(home / CURRENT_FILE, f"{cluster.folder.resolve()}\n")


def current_folder() -> Path | None:
    """The folder of the cluster that was started last, whether or not it is still there."""
    home = kbus_home()
    try:
        return home / (home / CURRENT_FILE).read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None


def current_cluster() -> LocalCluster | None:
    """The cluster that was started last; None if there is none. Raises ValueError if its file is damaged."""
    folder = current_folder()
    return None if folder is None else read_cluster(folder)


def read_cluster(folder: Path) -> LocalCluster | None:
    """None if there is no cluster in the folder. Raises ValueError if its file is damaged."""
    try:
        text = (folder / CLUSTER_FILE).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        content = json.loads(text)
        return LocalCluster(
            folder=folder,
            bootstrap_servers=str(content["bootstrap_servers"]),
            zookeeper=str(content["zookeeper"]),
            log_dirs=tuple(folder / str(log_dir) for log_dir in content.get("log_dirs", ())),
        )
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / CLUSTER_FILE} is not a description of a cluster ({error})") from None


def forget_current(folder: Path) -> None:
    """After the folder was removed: the current cluster is none, if it was that one."""
    current = current_folder()
    if current is not None and current.resolve() == folder.resolve():
        (kbus_home() / CURRENT_FILE).unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    """A reader sees the old text or the new one, never a part."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
