"""cluster.toml: a cluster described in a file. Settings have Kafka's names, quoted or not."""

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from kbus.cluster.spec import BrokerWishes, SpecError, Wishes
from kbus.config.setting import did_you_mean

_KEYS: Final = ("name", "brokers", "base_port", "racks", "restart", "settings", "broker")
_BROKER_KEYS: Final = ("port", "rack", "settings")


def load(path: Path) -> tuple[str | None, Wishes]:
    """The name, if the file gives one, and what it asks for. Raises SpecError."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SpecError(f"{path} cannot be read: {reason}.") from None
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path} is not TOML: {error}.") from None
    return _Reader(path).read(content)


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, content: Mapping[str, Any]) -> tuple[str | None, Wishes]:
        self._check_keys(content, _KEYS, "")
        wishes = Wishes(
            brokers=self._value(content, "brokers", int, "a number"),
            base_port=self._value(content, "base_port", int, "a number"),
            racks=self._racks(content),
            settings=self._settings(content, ""),
            restart=self._value(content, "restart", bool, "true or false"),
            per_broker={
                self._broker_id(number): self._broker(number, table)
                for number, table in self._table(content, "broker", "").items()
            },
        )
        return self._value(content, "name", str, "a text"), wishes

    def _broker(self, number: str, table: Any) -> BrokerWishes:
        where = f"broker.{number}."
        if not isinstance(table, dict):
            raise self._error(f"broker.{number} must be a table")
        self._check_keys(table, _BROKER_KEYS, where)
        return BrokerWishes(
            port=self._value(table, "port", int, "a number", where),
            rack=self._value(table, "rack", str, "a text", where),
            settings=self._settings(table, where),
        )

    def _broker_id(self, text: str) -> int:
        if not text.isdecimal() or int(text) < 1:
            raise self._error(f"broker.{text} must be broker.1, broker.2 or so on")
        return int(text)

    def _racks(self, content: Mapping[str, Any]) -> tuple[str, ...] | None:
        racks = self._value(content, "racks", list, "a list of texts")
        if racks is None:
            return None
        if not racks or not all(isinstance(rack, str) for rack in racks):
            raise self._error("racks must be a list of texts")
        return tuple(racks)

    def _settings(self, content: Mapping[str, Any], where: str) -> dict[str, str]:
        """`num.partitions = 3` is a table in a table to TOML, and one name here."""
        settings: dict[str, str] = {}

        def add(prefix: str, table: Mapping[str, Any]) -> None:
            for name, value in table.items():
                full = f"{prefix}{name}"
                if isinstance(value, dict):
                    add(f"{full}.", value)
                else:
                    settings[full] = self._text(full, value)

        add("", self._table(content, "settings", where))
        return settings

    def _text(self, name: str, value: Any) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, str | int | float):
            return str(value)
        if isinstance(value, list) and all(isinstance(item, str | int) for item in value):
            return ",".join(map(str, value))
        raise self._error(f"{name} must be a text, a number, true, false or a list")

    def _table(self, content: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
        return self._value(content, key, dict, "a table", where) or {}

    def _value(
        self, content: Mapping[str, Any], key: str, kind: Callable[..., Any], what: str, where: str = ""
    ) -> Any:
        value = content.get(key)
        if value is not None and type(value) is not kind:
            raise self._error(f"{where}{key} must be {what}")
        return value

    def _check_keys(self, content: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
        for key in content:
            if key not in known:
                hint = did_you_mean(key, known)
                if hint == ".":
                    hint = "; settings of brokers belong into [settings]."
                raise SpecError(f"{self._path}: {where}{key} is unknown{hint}")

    def _error(self, what: str) -> SpecError:
        return SpecError(f"{self._path}: {what}.")
