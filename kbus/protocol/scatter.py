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
        self._parts: list[Part] = []
        self._tail = bytearray(_SIZE.size)
        self._length = 0

    def write(self, data: Part) -> None:
        length = len(data)
        self._length += length
        if isinstance(data, bytes):
            self._tail += data
        elif length:
            self._parts += (bytes(self._tail), data)
            self._tail = bytearray()

    def frame(self) -> list[Part]:
        """The parts, the first of which starts with the frame's size."""
        head, *rest = [*self._parts, bytes(self._tail)]
        assert isinstance(head, bytes)
        return [_SIZE.pack(self._length) + head[_SIZE.size :], *(part for part in rest if part)]
