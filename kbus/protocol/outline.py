"""The outline of a request, walked before the request is decoded: does what its lengths claim fit its bytes?

kio sets memory aside for an array before it looks for the items, as many as the request claims. Twenty bytes
that claim four billion items are enough to abort the process, so no array reaches kio that has more items
than bytes that follow, and no request with more items in all than any honest one has.

From large requests it lifts out the records, as views of the frame, and leaves empty ones in their place:
kio would copy them, and a megabyte that is copied once more is a third of the work of a produce.

The walk also evens out where kio differs from the protocol: a null where none may be is refused, a boolean
is true if it is not zero, and tagged fields that a newer client may send, which a reader has to skip, are
taken out.
"""

import dataclasses
import struct
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Any, Final, get_args, get_origin

from kbus.protocol.kio import SerialError

LIFT_BYTES: Final = 64 * 1024
"""A smaller request is decoded as it is: to copy it is less work than to take it apart."""
MAX_ITEMS: Final = 100_000
"""Of all arrays of a request together. Decoded, an item of a few bytes takes hundreds."""
_FIXED_SIZES: Final = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "error_code": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "uint64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "float64": 8,
    "uuid": 16,
}
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_HEADER_SIZE: Final = 8
"""API key, version and correlation id, which come before the client id in every header."""
_MAX_VARINT_SHIFT: Final = 28
_NULL_MARKER: Final = 0xFF


class OutlineError(SerialError):
    """The request is not what its API and version say it is."""


class _Walk:
    """`edits` are (start, end, what to put there instead), in ascending order."""

    __slots__ = ("edits", "frame", "items_left", "lifted")

    def __init__(self, frame: memoryview) -> None:
        self.frame = frame
        self.lifted: list[memoryview | None] | None = [] if len(frame) >= LIFT_BYTES else None
        self.items_left = MAX_ITEMS
        self.edits: list[tuple[int, int, bytes]] = []

    def count(self, items: int, position: int, item_size: int) -> None:
        if items * item_size > len(self.frame) - position:
            raise OutlineError(f"an array claims {items} items, which the request has no room for")
        self.items_left -= items
        if self.items_left < 0:
            raise OutlineError(f"the request has more than {MAX_ITEMS} items")


Lifted = list[memoryview | None]
"""The records of a request in the order of their fields. Good as long as the frame is."""

Step = Callable[[_Walk, int], int]
"""Takes the position of a field and returns that behind it. It may lie beyond the end: whoever reads there
fails."""


class Outline:
    """Of the requests of one type: `request` is one of kio's request classes."""

    def __init__(self, request: Any) -> None:
        header: list[Step] = [_legacy_string(True)]  # the client id, compact in no version
        if request.__header_schema__.__flexible__:
            header.append(_tagged_fields({}))
        self._steps = (*header, *_entity_steps(request))

    def checked(self, frame: memoryview) -> tuple[memoryview, Lifted | None]:
        """`frame`, or what is left of it without unknown tagged fields, and without the records where those
        were lifted out. Raises OutlineError."""
        walk = _Walk(frame)
        position = _HEADER_SIZE
        try:
            for step in self._steps:
                position = step(walk, position)
        except (IndexError, struct.error):
            raise OutlineError("the request ends too early") from None
        if position > len(frame):
            raise OutlineError("the request ends too early")
        return (_edited(frame, walk.edits) if walk.edits else frame), walk.lifted or None


def _edited(frame: memoryview, edits: list[tuple[int, int, bytes]]) -> memoryview:
    parts: list[memoryview | bytes] = []
    kept_to = 0
    for start, end, replacement in edits:
        parts += (frame[kept_to:start], replacement)
        kept_to = end
    parts.append(frame[kept_to:])
    return memoryview(b"".join(parts))


# ---- from kio's classes to steps


def _entity_steps(entity: Any) -> list[Step]:
    """The steps through an entity; neighbours of fixed size are one step."""
    flexible = entity.__flexible__
    steps: list[Step] = []
    tagged: dict[int, Step] = {}
    fixed = 0
    for field in dataclasses.fields(entity):
        if "tag" in field.metadata:
            tagged[field.metadata["tag"]] = _field_step(field, flexible, is_tagged=True)
            continue
        size = _fixed_size(field)
        if size is not None:
            fixed += size
            continue
        if fixed:
            steps.append(_fixed(fixed))
            fixed = 0
        steps.append(_field_step(field, flexible, is_tagged=False))
    if fixed:
        steps.append(_fixed(fixed))
    if flexible:
        steps.append(_tagged_fields(tagged))
    return steps


def _fixed_size(field: "dataclasses.Field[Any]") -> int | None:
    inner, _ = _without_none(field.type)
    kafka_type = field.metadata.get("kafka_type")
    if get_origin(inner) is tuple or kafka_type is None or kafka_type == "bool":
        return None
    return _FIXED_SIZES.get(kafka_type)


def _field_step(field: "dataclasses.Field[Any]", flexible: bool, *, is_tagged: bool) -> Step:
    inner, nullable = _without_none(field.type)
    kafka_type = field.metadata.get("kafka_type")
    if get_origin(inner) is tuple:
        item, _ = _without_none(get_args(inner)[0])
        return _array(item, kafka_type, flexible, nullable)
    if kafka_type is None:
        return _nullable(_sequence(_entity_steps(inner))) if nullable else _sequence(_entity_steps(inner))
    return _primitive(kafka_type, flexible, nullable and not is_tagged)


def _without_none(kind: Any) -> tuple[Any, bool]:
    if get_origin(kind) is not UnionType:
        return kind, False
    (inner,) = (argument for argument in get_args(kind) if argument is not NoneType)
    return inner, True


def _primitive(kafka_type: str, flexible: bool, nullable: bool) -> Step:
    if kafka_type == "bool":
        return _boolean
    if kafka_type in _FIXED_SIZES:
        return _fixed(_FIXED_SIZES[kafka_type])
    if kafka_type == "records":
        return _records(flexible)
    if flexible:
        return _compact_bytes(nullable)
    if kafka_type == "string":
        return _legacy_string(nullable)
    return _legacy_bytes(nullable)


def _array(item: Any, kafka_type: str | None, flexible: bool, nullable: bool) -> Step:
    steps: list[Step] = []
    item_size: int | None
    if kafka_type is None:
        steps = _entity_steps(item)
        item_size = None
    else:
        item_size = None if kafka_type == "bool" else _FIXED_SIZES.get(kafka_type)
        if item_size is None:
            steps = [_primitive(kafka_type, flexible, nullable=False)]

    def step(walk: _Walk, position: int) -> int:
        if flexible:
            count = walk.frame[position] - 1
            if count < 127:
                position += 1
            else:
                count, position = _varint(walk.frame, position)
                count -= 1
        else:
            (count,) = _INT32.unpack_from(walk.frame, position)
            position += _INT32.size
        if count < 0:
            if count != -1 or not nullable:
                raise OutlineError(f"an array has a length of {count}")
            return position
        walk.count(count, position, item_size or 1)
        if item_size is not None:
            return position + count * item_size
        for _ in range(count):
            for item_step in steps:
                position = item_step(walk, position)
        return position

    return step


# ---- steps


def _fixed(size: int) -> Step:
    return lambda _, position: position + size


def _boolean(walk: _Walk, position: int) -> int:
    if walk.frame[position] > 1:
        walk.edits.append((position, position + 1, b"\x01"))
    return position + 1


def _sequence(steps: list[Step]) -> Step:
    def step(walk: _Walk, position: int) -> int:
        for inner in steps:
            position = inner(walk, position)
        return position

    return step


def _nullable(inner: Step) -> Step:
    """An entity that may be null begins with a byte that says whether it is."""

    def step(walk: _Walk, position: int) -> int:
        marker = walk.frame[position]
        if marker == _NULL_MARKER:
            return position + 1
        if marker > 127:
            raise OutlineError(f"{marker} does not say whether a structure is null")
        return inner(walk, position + 1)

    return step


def _varint(frame: memoryview, position: int) -> tuple[int, int]:
    byte = frame[position]
    if byte < 128:
        return byte, position + 1
    value, shift = byte & 0x7F, 7
    while True:
        position += 1
        byte = frame[position]
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return value, position + 1
        shift += 7
        if shift > _MAX_VARINT_SHIFT:
            raise OutlineError("a number is longer than five bytes")


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _compact_bytes(nullable: bool) -> Step:
    def step(walk: _Walk, position: int) -> int:
        length = walk.frame[position]
        if length < 128:  # nearly always, but for records
            position += 1
        else:
            length, position = _varint(walk.frame, position)
        if length:
            return position + length - 1
        if not nullable:
            raise OutlineError("a text or bytes are null")
        return position

    return step


def _records(flexible: bool) -> Step:
    """They may be null in every version."""
    pass_by = _compact_bytes(True) if flexible else _legacy_bytes(True)
    empty = b"\x01" if flexible else bytes(_INT32.size)

    def step(walk: _Walk, position: int) -> int:
        end = pass_by(walk, position)
        if walk.lifted is not None:
            start = _varint(walk.frame, position)[1] if flexible else position + _INT32.size
            if end > start:
                walk.lifted.append(walk.frame[start:end])
                walk.edits.append((position, end, empty))
            else:
                walk.lifted.append(None)
        return end

    return step


def _legacy(length: struct.Struct, nullable: bool) -> Step:
    def step(walk: _Walk, position: int) -> int:
        (size,) = length.unpack_from(walk.frame, position)
        if size >= 0:
            return position + length.size + int(size)
        if size != -1 or not nullable:
            raise OutlineError(f"a text or bytes have a length of {size}")
        return position + length.size

    return step


def _legacy_string(nullable: bool) -> Step:
    return _legacy(_INT16, nullable)


def _legacy_bytes(nullable: bool) -> Step:
    return _legacy(_INT32, nullable)


def _tagged_fields(known: Mapping[int, Step]) -> Step:
    def step(walk: _Walk, position: int) -> int:
        frame = walk.frame
        if frame[position] == 0:  # nearly always
            return position + 1
        start = position
        count, position = _varint(frame, position)
        walk.count(count, position, 2)
        first = position
        kept = 0
        edits: list[tuple[int, int, bytes]] = []
        before = len(walk.edits)
        for _ in range(count):
            field_start = position
            tag, position = _varint(frame, position)
            size, position = _varint(frame, position)
            end = position + size
            if tag not in known:
                edits.append((field_start, end, b""))
            elif known[tag](walk, position) != end:
                raise OutlineError(f"tagged field {tag} does not have the {size} bytes it claims")
            else:
                kept += 1
            position = end
        if edits:
            # Edits within known fields are between those of unknown ones.
            walk.edits[before:] = sorted([(start, first, _encode_varint(kept)), *edits, *walk.edits[before:]])
        return position

    return step
