"""IncrementalAlterConfigs: new overrides from old ones, as a pure function."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from kbus.config.setting import ConfigError, ConfigType, Setting, did_you_mean


class AlterOp(IntEnum):
    """Numbers of IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Alteration:
    name: str
    op: AlterOp
    value: str | None = None


def apply_alterations(
    overrides: Mapping[str, str],
    alterations: Iterable[Alteration],
    settings: Mapping[str, Setting[Any]],
) -> dict[str, str]:
    """`settings` is the table that the names are of: topic.SETTINGS or broker.SETTINGS.

    Values are checked when the result becomes a TopicConfig or a BrokerConfig. A name that is in no table can
    still be deleted: it may be left over from another version.
    """
    changed = dict(overrides)
    seen = set()
    for alteration in alterations:
        name = alteration.name
        if name in seen:
            raise ConfigError(f"{name} is changed twice in one request; say it once.")
        seen.add(name)
        if alteration.op is AlterOp.DELETE:
            changed.pop(name, None)
            continue
        setting = settings.get(name)
        if setting is None:
            raise ConfigError(f"Unknown setting {name}{did_you_mean(name, settings)}")
        if alteration.value is None:
            raise ConfigError(f"{name} has no value to {alteration.op.name.lower()}.")
        if alteration.op is AlterOp.SET:
            changed[name] = alteration.value
            continue
        if setting.type is not ConfigType.LIST:
            raise ConfigError(f"{name} is not a list, so nothing can be appended to or subtracted from it.")
        current = _items(changed.get(name, setting.render(setting.default) or ""))
        given = _items(alteration.value)
        if alteration.op is AlterOp.APPEND:
            current += [item for item in given if item not in current]
        else:
            current = [item for item in current if item not in given]
        changed[name] = ",".join(current)
    return changed


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
