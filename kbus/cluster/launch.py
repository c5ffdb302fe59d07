"""Brings a supervisor up, for commands that start something."""

import json
import os
import select
import subprocess
import sys
import time
from typing import Final

from kbus.cluster.control import Control
from kbus.cluster.folder import ClusterFolder
from kbus.cluster.spec import SpecError

_SERVE_TIMEOUT_S: Final = 20.0
_POLL_S: Final = 0.02


class LaunchError(Exception):
    """There is no supervisor. The text is a sentence for people."""


def supervised(folder: ClusterFolder) -> Control:
    """The way to the cluster's supervisor, which is started if there is none."""
    control = Control(folder)
    deadline = time.monotonic() + _SERVE_TIMEOUT_S
    while not control.is_supervised:
        # One that is about to go, or was started by another command just now, has the folder and does not
        # answer.
        if not _launch(folder):
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"The supervisor of cluster {folder.name} does not answer; its log is {folder.log_file}."
                )
            time.sleep(_POLL_S)
    return control


def _launch(folder: ClusterFolder) -> bool:
    """Whether a supervisor serves now; there may be another one that does not."""
    _check_ours(folder)
    folder.path.mkdir(parents=True, exist_ok=True)
    receiving, sending = os.pipe()
    try:
        try:
            with folder.log_file.open("ab") as log:
                log_start = log.tell()
                subprocess.run(
                    [sys.executable, "-m", "kbus.cluster", str(folder.path), str(sending)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=folder.path,
                    pass_fds=(sending,),
                    check=False,
                )
        finally:
            os.close(sending)
        told = _read_line(receiving)
    finally:
        os.close(receiving)
    if "error" in told:
        raise LaunchError(str(told["error"]))
    if not told:
        raise LaunchError(
            f"The supervisor of cluster {folder.name} does not start: {_last_line(folder, log_start)}; its "
            f"log is {folder.log_file}."
        )
    return "serving" in told


def _check_ours(folder: ClusterFolder) -> None:
    """Not into a folder that holds something else."""
    try:
        entries = {entry.name for entry in folder.path.iterdir()}
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise SpecError(f"{folder.path} is a file; choose another name for the cluster.") from None
    # A supervisor that found nothing to do leaves its own files behind.
    if (
        entries - {folder.log_file.name, folder.lock_file.name, folder.zookeeper.name}
        and not folder.is_cluster
    ):
        raise SpecError(f"{folder.path} holds something else than a cluster; choose another name.")


def _read_line(descriptor: int) -> dict[str, object]:
    """Empty if the supervisor ended, or went on without a word."""
    deadline = time.monotonic() + _SERVE_TIMEOUT_S
    data = b""
    while not data.endswith(b"\n"):
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        chunk = os.read(descriptor, 65536) if ready else b""
        if not chunk:
            return {}
        data += chunk
    told: dict[str, object] = json.loads(data)
    return told


def _last_line(folder: ClusterFolder, log_start: int) -> str:
    with folder.log_file.open("rb") as file:
        file.seek(log_start)
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else "it said nothing"
