"""Requests of every kind there is, made from kio's own description of them."""

import dataclasses
from datetime import timedelta
from types import NoneType, UnionType
from typing import Any, get_args, get_origin
from uuid import UUID

from hypothesis import strategies as st

from kbus.protocol.api import ApiKey, Schema, schema_for
from kbus.protocol.kio import EntityType, load_payload_module, schema_name_map

SCHEMAS = [(api, version) for api in ApiKey for version in schema_name_map[api.name.lower()]]

_INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def _primitive(kafka_type: str) -> st.SearchStrategy[Any]:
    if kafka_type in _INTEGERS:
        limit = 2 ** (_INTEGERS[kafka_type] - 1)
        return st.integers(-limit, limit - 1)
    if kafka_type == "timedelta_i32":
        return st.integers(-(2**31), 2**31 - 1).map(lambda ms: timedelta(milliseconds=ms))
    return {
        "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
        "records": st.binary(max_size=300),
        "bytes": st.binary(max_size=300),
        "bool": st.booleans(),
        "uuid": st.none() | st.integers(1, 2**128 - 1).map(lambda number: UUID(int=number)),
    }[kafka_type]


def entities(kind: Any) -> st.SearchStrategy[Any]:
    """Instances of one of kio's classes, with any values in its fields."""
    return st.builds(kind, **{field.name: _field(field) for field in dataclasses.fields(kind)})


def _field(field: "dataclasses.Field[Any]") -> st.SearchStrategy[Any]:
    kind: Any = field.type
    nullable = False
    if get_origin(kind) is UnionType:
        (kind,) = (argument for argument in get_args(kind) if argument is not NoneType)
        nullable = True
    kafka_type = field.metadata.get("kafka_type")
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        inner = (
            entities(item) if kafka_type is None else _primitive(kafka_type).filter(lambda v: v is not None)
        )
        value: st.SearchStrategy[Any] = st.lists(inner, max_size=4).map(tuple)
    else:
        value = entities(kind) if kafka_type is None else _primitive(kafka_type)
    # A null tagged field is one that is left out, which kio writes only for the default.
    return st.none() | value if nullable and "tag" not in field.metadata else value


@st.composite
def requests(draw: st.DrawFn) -> tuple[Schema, Any]:
    api, version = draw(st.sampled_from(SCHEMAS))
    return schema_for(api, version), draw(entities(_request_class(api, version)))


def _request_class(api: ApiKey, version: int) -> Any:
    module = load_payload_module(api, version, EntityType.request)
    (found,) = (
        kind for kind in vars(module).values() if getattr(kind, "__type__", None) is EntityType.request
    )
    return found


@st.composite
def frames(draw: st.DrawFn) -> tuple[Schema, bytes]:
    """The bytes of a request, without its size."""
    schema, request = draw(requests())
    return schema, schema.write_request(7, "client", request)[4:]
