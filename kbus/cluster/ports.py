"""Ports of this machine: which are free, and who has one that is not."""

import errno
import os
import socket
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

FIRST_PORT: Final = 9092
_LISTENING: Final = "0A"


class PortTakenError(Exception):
    """The text is a sentence for people."""


def is_free(host: str, port: int) -> bool:
    """Whether a broker could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as brokers do
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def check_free(host: str, port: int, who: str) -> None:
    """Raises PortTakenError, which names who has the port where that can be found out."""
    if not is_free(host, port):
        holder = holder_of(port)
        what = f"by {holder}" if holder else "by another program"
        raise PortTakenError(
            f"{who} cannot listen on {host}:{port}, which is taken {what}; stop that, or choose other "
            "ports with `kbus cluster start --base-port PORT`."
        )


def find_free(host: str, count: int, *, avoid: Collection[int], first: int = FIRST_PORT) -> list[int]:
    """The first `count` ports in a row that are free, none of them in `avoid`."""
    found: list[int] = []
    for port in range(first, 65536):
        if port in avoid or not is_free(host, port):
            found = []
            continue
        found.append(port)
        if len(found) == count:
            return found
    raise PortTakenError(
        f"There are no {count} free ports in a row from {first} on; give others with --base-port."
    )


def holder_of(port: int) -> str | None:
    """`pid 123 (python -m http.server)` for the process that listens on the port; None if that cannot be
    told: on another system than Linux, or for a process of somebody else."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not sockets:
        return None
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and _has_open(process, sockets):
            return f"pid {process.name} ({command_of(int(process.name))})"
    return None


def command_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "unknown"
    if name.startswith("kbus-"):
        return name
    return " ".join(filter(None, words))[:120] or name


def _listening_inodes(port: int) -> list[str]:
    inodes = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError), open(table, encoding="ascii") as lines:
            for line in list(lines)[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.append(fields[9])
    return inodes


def _has_open(process: Path, sockets: Collection[str]) -> bool:
    with suppress(OSError):
        for name in os.listdir(process / "fd"):
            with suppress(OSError):
                if os.readlink(process / "fd" / name) in sockets:
                    return True
    return False
