"""Disks that break: errors on demand, and power losses that forget what was not synced."""

import errno
import os
import random
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from kbus.records.batch import Buffer
from kbus.storage.disk import RealDisk


@dataclass
class Fault:
    operation: str
    path_ends_with: str
    error: int
    after_bytes: int
    """Of a write, how many get through before the error."""
    times: int


class FaultyDisk(RealDisk):
    """Does what it is told, until it is told to fail."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.operations: list[str] = []

    def fail(
        self, operation: str, error: int = errno.EIO, *, on: str = "", after_bytes: int = 0, times: int = 1
    ) -> None:
        self.faults.append(Fault(operation, on, error, after_bytes, times))

    def _fault(self, operation: str, path: str) -> Fault | None:
        self.operations.append(f"{operation} {os.path.basename(path)}")
        for fault in self.faults:
            if fault.operation == operation and path.endswith(fault.path_ends_with) and fault.times:
                fault.times -= 1
                return fault
        return None

    def _maybe_fail(self, operation: str, path: str) -> None:
        fault = self._fault(operation, path)
        if fault is not None:
            raise OSError(fault.error, os.strerror(fault.error), path)

    def open(self, path: str, *, create: bool = False) -> int:
        self._maybe_fail("open", path)
        return super().open(path, create=create)

    def write(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        path = _path_of(fd)
        fault = self._fault("write", path)
        if fault is None:
            super().write(fd, buffers, position)
            return
        super().write(fd, [b"".join(buffers)[: fault.after_bytes]], position)
        raise OSError(fault.error, os.strerror(fault.error), path)

    def truncate(self, fd: int, size: int) -> None:
        self._maybe_fail("truncate", _path_of(fd))
        super().truncate(fd, size)

    def fsync(self, fd: int) -> None:
        self._maybe_fail("fsync", _path_of(fd))
        super().fsync(fd)

    def fsync_directory(self, path: str) -> None:
        self._maybe_fail("fsync_directory", path)
        super().fsync_directory(path)

    def rename(self, source: str, target: str) -> None:
        self._maybe_fail("rename", source)
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._maybe_fail("unlink", path)
        super().unlink(path)


class PowerLossDisk(RealDisk):
    """Remembers what has been synced below `root`. `lose_power` brings the files back to that, or, as a real
    disk may, to anything between that and what was written.

    Syncs only note what would be on disk; nothing is really waited for."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._next_id = 0
        self._ids: dict[int, int] = {}
        self._contents: dict[int, bytes] = {}
        self._listings: dict[str, dict[str, int]] = {}
        self._note_directory(root)

    def open(self, path: str, *, create: bool = False) -> int:
        is_new = create and not os.path.exists(path)
        fd = super().open(path, create=create)
        if is_new:
            self._ids[os.fstat(fd).st_ino] = self._next_id
            self._contents[self._next_id] = b""
            self._next_id += 1
        return fd

    def fsync(self, fd: int) -> None:
        info = os.fstat(fd)
        self._contents[self._ids[info.st_ino]] = os.pread(fd, info.st_size, 0)

    def fsync_directory(self, path: str) -> None:
        self._note_directory(path)

    def damaged(self, path: str) -> None:
        """What is now in the file got onto the disk."""
        self._contents[self._ids[os.stat(path).st_ino]] = _read(path)

    def _note_directory(self, path: str) -> None:
        entries = [entry for entry in os.scandir(path) if entry.is_file(follow_symlinks=False)]
        self._listings[path] = {entry.name: self._ids[entry.inode()] for entry in entries}

    def lose_power(self, rng: random.Random | None = None, *, keep_names: bool = False) -> None:
        """Without `rng` all that was not synced is lost; with `keep_names` only what is in the files is."""
        for path, durable in self._listings.items():
            current = {entry.name: entry.inode() for entry in os.scandir(path) if entry.is_file()}
            written = {self._ids[inode]: _read(os.path.join(path, name)) for name, inode in current.items()}
            names = durable
            if keep_names or (rng is not None and rng.random() < 0.5):
                names = {name: self._ids[inode] for name, inode in current.items()}
            for name in current:
                os.unlink(os.path.join(path, name))
            for name, number in names.items():
                synced = self._contents[number]
                data = synced if rng is None else _mix(synced, written.get(number, synced), rng)
                with open(os.path.join(path, name), "xb") as file:
                    file.write(data)
                inode = os.stat(os.path.join(path, name)).st_ino
                self._ids[inode] = self._next_id
                self._contents[self._next_id] = data
                self._next_id += 1
            self._note_directory(path)


def _mix(synced: bytes, written: bytes, rng: random.Random) -> bytes:
    """What may be in a file: pages that were written since the last sync got there, or not."""
    choice = rng.randrange(4)
    if choice == 0:
        return synced
    if choice == 1:
        return written
    pairs = zip(synced, written, strict=False)
    common = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(synced), len(written)))
    cut = rng.randint(common, max(len(written), common))
    if choice == 2:
        return written[:cut]
    # The length got there before the data.
    return written[:cut] + bytes(max(len(written) - cut, 0))


def _path_of(fd: int) -> str:
    assert stat.S_ISREG(os.fstat(fd).st_mode)
    return os.readlink(f"/proc/self/fd/{fd}")


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
