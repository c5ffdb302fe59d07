"""A setting: its name, type, default, the values it takes, who may change it and what it is for."""

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class ConfigError(ValueError):
    """A configuration is refused. The text is one sentence for people: what is wrong and what would be right.

    On the wire it is INVALID_CONFIG; this package lies below the protocol and cannot say so itself.
    """


class ConfigType(IntEnum):
    """Numbers of DescribeConfigs (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Importance(Enum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class UpdateMode(Enum):
    """How a broker setting changes in a running cluster."""

    READ_ONLY = "read-only"
    """Read once, at start."""
    PER_BROKER = "per-broker"
    """Changed for one broker, in /config/brokers/ID."""
    CLUSTER_WIDE = "cluster-wide"
    """Changed for one broker or for all, in /config/brokers/<default>."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[T]):
    """A type with the values it allows. `parse` raises ValueError for what `expects` does not describe,
    with a text of its own only where that says more than `expects`."""

    type: ConfigType
    expects: str
    parse: Callable[[str], T]
    render: Callable[[T], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(Generic[T]):
    name: str
    kind: Kind[Any]
    default: T
    doc: str
    importance: Importance = Importance.MEDIUM

    def parse(self, text: str) -> T:
        try:
            value: T = self.kind.parse(text.strip())
        except ValueError as error:
            detail = str(error) or f"must be {self.kind.expects}, but it is {text.strip()!r}"
            raise ConfigError(f"{self.name} {detail}.") from None
        return value

    def render(self, value: T) -> str | None:
        return None if value is None else self.kind.render(value)

    @property
    def type(self) -> ConfigType:
        return self.kind.type

    @property
    def is_sensitive(self) -> bool:
        return self.kind.type is ConfigType.PASSWORD


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSetting(Setting[T]):
    update_mode: UpdateMode = UpdateMode.READ_ONLY


@dataclass(frozen=True, slots=True, kw_only=True)
class Synonym:
    """A broker setting that gives a topic setting its value, through `convert`, where the topic has none."""

    setting: BrokerSetting[Any]
    convert: Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSetting(Setting[T]):
    synonyms: tuple[Synonym, ...] = ()
    """In order of precedence. All but the last are without a value by default."""


_BITS = {ConfigType.SHORT: 16, ConfigType.INT: 32, ConfigType.LONG: 64}


def integer(
    type_: ConfigType, *, at_least: int | None = None, at_most: int | None = None, also: int | None = None
) -> Kind[int]:
    """A whole number of Java's width. `also` is one value allowed outside the range."""
    limit = 1 << (_BITS[type_] - 1)
    low = -limit if at_least is None else at_least
    high = limit - 1 if at_most is None else at_most
    expects = f"a whole number from {low} to {high}"
    if at_most is None:
        expects = "a whole number" if at_least is None else f"a whole number of at least {low}"
    if also is not None:
        expects += f", or {also}"

    def parse(text: str) -> int:
        digits = text[1:] if text[:1] in ("+", "-") else text
        if not (digits.isascii() and digits.isdigit()):
            raise ValueError
        value = int(text)
        if value == also:
            return value
        if not low <= value <= high:
            if value >= limit:
                raise ValueError(f"must be at most {high}, but it is {value}")
            raise ValueError
        return value

    return Kind(type=type_, expects=expects, parse=parse, render=str)


def short(**limits: int) -> Kind[int]:
    return integer(ConfigType.SHORT, **limits)


def int32(**limits: int) -> Kind[int]:
    return integer(ConfigType.INT, **limits)


def int64(**limits: int) -> Kind[int]:
    return integer(ConfigType.LONG, **limits)


def double(low: float, high: float) -> Kind[float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError from None  # without Python's own words
        if not low <= value <= high:  # false for NaN, too
            raise ValueError
        return value

    return Kind(
        type=ConfigType.DOUBLE, expects=f"a number from {low:g} to {high:g}", parse=parse, render=repr
    )


def _parse_boolean(text: str) -> bool:
    match text.lower():
        case "true":
            return True
        case "false":
            return False
    raise ValueError


BOOLEAN: Kind[bool] = Kind(
    type=ConfigType.BOOLEAN,
    expects="true or false",
    parse=_parse_boolean,
    render=lambda value: "true" if value else "false",
)

STRING: Kind[str] = Kind(type=ConfigType.STRING, expects="a text", parse=str, render=str)


def one_of(*choices: str) -> Kind[str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError
        return text

    return Kind(type=ConfigType.STRING, expects=_either(choices), parse=parse, render=str)


def list_of(expects: str, is_valid: Callable[[str], bool]) -> Kind[tuple[str, ...]]:
    """A comma-separated list; the empty text is the empty list."""

    def parse(text: str) -> tuple[str, ...]:
        items = tuple(item.strip() for item in text.split(",")) if text else ()
        if not all(map(is_valid, items)):
            raise ValueError
        return items

    return Kind(type=ConfigType.LIST, expects=expects, parse=parse, render=",".join)


def some_of(*choices: str) -> Kind[tuple[str, ...]]:
    return list_of(f"a list of {_either(choices)}", choices.__contains__)


def _either(choices: tuple[str, ...]) -> str:
    return f"{', '.join(choices[:-1])} or {choices[-1]}"


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: a suggestion, or nothing."""
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.75)
    return f"; did you mean {close[0]}?" if close else "."
