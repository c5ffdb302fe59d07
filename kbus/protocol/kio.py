"""The one door to the kio package.

kio imports hypothesis when it is installed, to register strategies, which costs more than a second of
start-up in a development environment and serves nobody here. It is hidden for the length of the import.
"""

import sys

_absent = object()
_hypothesis = sys.modules.get("hypothesis", _absent)
if _hypothesis is _absent:
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
try:
    from kio.index import load_entity_module, load_payload_module
    from kio.schema.errors import ErrorCode
    from kio.schema.index import schema_name_map
    from kio.serial import entity_reader, entity_writer
    from kio.serial.errors import SerialError
    from kio.static.constants import EntityType
finally:
    if _hypothesis is _absent:
        del sys.modules["hypothesis"]

__all__ = [
    "EntityType",
    "ErrorCode",
    "SerialError",
    "entity_reader",
    "entity_writer",
    "load_entity_module",
    "load_payload_module",
    "schema_name_map",
]
