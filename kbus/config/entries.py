"""What DescribeConfigs tells of a setting: its value, and where that comes from."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from kbus.config.setting import ConfigType, Setting


class ConfigSource(IntEnum):
    """Numbers of DescribeConfigs."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSynonym:
    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    name: str
    value: str | None
    """None where there is no value and where it must not be shown."""
    source: ConfigSource
    type: ConfigType
    synonyms: tuple[ConfigSynonym, ...]
    """Every place that gives a value, the one that counts first."""
    documentation: str
    is_sensitive: bool
    read_only: bool

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT_CONFIG


def entry(
    setting: Setting[Any], value: Any, synonyms: tuple[ConfigSynonym, ...], *, read_only: bool
) -> ConfigEntry:
    return ConfigEntry(
        name=setting.name,
        value=None if setting.is_sensitive else setting.render(value),
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        type=setting.type,
        synonyms=synonyms,
        documentation=setting.doc,
        is_sensitive=setting.is_sensitive,
        read_only=read_only,
    )
