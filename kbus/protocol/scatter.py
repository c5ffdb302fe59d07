"""What a response is made of: bytes, and stretches of files that go to the socket without a copy."""

import struct
from typing import Protocol

_SIZE = struct.Struct(">i")


class HasFileno(Protocol):
    def fileno(self) -> int: ...


class FilePart:
    """`length` bytes of an open file from `position`. The file stays open while the part refers to it."""

    __slots__ = ("file", "length", "position")

    def __init__(self, file: HasFileno, position: int, length: int) -> None:
        self.file = file
        self.position = position
        self.length = length

    def __len__(self) -> int:
        return self.length


Part = bytes | FilePart


class ScatterBuffer:
    """A sink for kio's writers that takes a `FilePart` where a records field is written.

    kio writes a records field as its length, by `len()`, followed by the value itself: passing a
    `FilePart` as the value puts the right length on the wire and the part, unread, into the frame.
    """

    def __init__(self) -> None:
        self._written: list[Part] = []
        self.write = self._written.append
        """A writer makes dozens of small writes: each is an append in C, put together once, at the end."""

    def frame(self) -> list[Part]:
        """The parts, the first of which starts with the frame's size."""
        parts: list[Part] = []
        small: list[bytes] = [_SIZE.pack(sum(map(len, self._written)))]
        for data in self._written:
            if isinstance(data, bytes):
                small.append(data)
            elif data.length:
                parts += (b"".join(small), data)
                small = []
        if small:
            parts.append(b"".join(small))
        return parts
