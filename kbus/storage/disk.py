"""The door through which every change of a file goes, so that tests can break it.

Reading is ordinary (`os.pread`, `mmap`, `open`). Writing is positional: the caller knows where its file
ends, so a write that failed half-way is overwritten or cut off, never appended to.
"""

import os
from collections.abc import Sequence
from typing import Protocol

from kbus.records.batch import Buffer

TEMPORARY_SUFFIX = ".tmp"
_MAX_BUFFERS = 512
"""Well below the kernel's limit of buffers in one call (1024)."""


class Disk(Protocol):
    """What storage may do to files. All of it raises OSError when it could not be done."""

    def open(self, path: str, *, create: bool = False) -> int:
        """A descriptor for reading and writing; with `create`, of a file that need not exist yet."""

    def write(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        """Write all of `buffers` at `position`. After an error any part of it may be in the file."""

    def truncate(self, fd: int, size: int) -> None:
        """Cut the file to `size`, or extend it with a hole."""

    def fsync(self, fd: int) -> None:
        """Everything written to the file before the call survives a power loss after it."""

    def fsync_directory(self, path: str) -> None:
        """The same for the names in a directory: files created, renamed, removed."""

    def replace(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Put a whole file in place of what is there: readers and crashes see the old or the new one."""

    def rename(self, source: str, target: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def make_directory(self, path: str) -> None: ...

    def remove_directory(self, path: str) -> None: ...


class RealDisk:
    def open(self, path: str, *, create: bool = False) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)

    def write(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        if len(buffers) > _MAX_BUFFERS:
            for start in range(0, len(buffers), _MAX_BUFFERS):
                part = buffers[start : start + _MAX_BUFFERS]
                self.write(fd, part, position)
                position += sum(map(len, part))
            return
        written = os.pwritev(fd, buffers, position)
        total = sum(map(len, buffers))
        while written < total:
            # Short: a signal, or a disk that is about to say that it is full.
            rest = memoryview(b"".join(buffers))[written:]
            count = os.pwrite(fd, rest, position + written)
            if count == 0:
                raise OSError(f"wrote {written} of {total} bytes and no more")
            written += count

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def fsync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def replace(self, path: str, data: bytes, *, sync: bool = True) -> None:
        temporary = path + TEMPORARY_SUFFIX
        fd = self.open(temporary, create=True)
        try:
            self.truncate(fd, 0)
            self.write(fd, [data], 0)
            if sync:
                self.fsync(fd)
        finally:
            os.close(fd)
        self.rename(temporary, path)
        if sync:
            self.fsync_directory(os.path.dirname(path))

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def make_directory(self, path: str) -> None:
        os.mkdir(path, 0o755)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)
