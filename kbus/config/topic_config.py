"""The configuration of one topic: what was set on it, over what the broker gives to all topics."""

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from kbus.config import topic
from kbus.config.broker_config import BrokerConfig
from kbus.config.entries import ConfigEntry, ConfigSource, ConfigSynonym, entry
from kbus.config.setting import ConfigError, TopicSetting, did_you_mean

T = TypeVar("T")

_EMPTY: Mapping[str, str] = {}


class TopicConfig:
    """Immutable and valid. `config[SETTING]` is a typed value."""

    __slots__ = ("_broker", "_values", "overrides", "warnings")

    def __init__(self, broker: BrokerConfig, overrides: Mapping[str, str | None] = _EMPTY) -> None:
        """Raises ConfigError for the first override that is wrong."""
        parsed = {name: _parse(name, text) for name, text in overrides.items()}
        self._broker = broker
        self._values: dict[str, Any] = {
            name: parsed[name] if name in parsed else _inherited(setting, broker)
            for name, setting in topic.SETTINGS.items()
        }
        self.overrides: Mapping[str, str] = {
            name: text for name, text in overrides.items() if text is not None
        }
        self.warnings: tuple[str, ...] = ()
        if self[topic.MIN_COMPACTION_LAG_MS] > self[topic.MAX_COMPACTION_LAG_MS]:
            raise ConfigError(
                f"min.compaction.lag.ms ({self[topic.MIN_COMPACTION_LAG_MS]}) must not exceed "
                f"max.compaction.lag.ms ({self[topic.MAX_COMPACTION_LAG_MS]})."
            )

    @classmethod
    def from_store(cls, broker: BrokerConfig, overrides: Mapping[str, str]) -> "TopicConfig":
        """For what is in ZooKeeper already, where it is too late to refuse: what is wrong is left out, with a
        warning, and the topic lives on."""
        kept: dict[str, str | None] = {}
        warnings = []
        config = cls(broker)
        for name, text in overrides.items():
            try:
                config = cls(broker, {**kept, name: text})
            except ConfigError as error:
                warnings.append(str(error))
            else:
                kept[name] = text
        config.warnings = tuple(warnings)
        return config

    def __getitem__(self, setting: TopicSetting[T]) -> T:
        return cast(T, self._values[setting.name])

    def describe(self) -> tuple[ConfigEntry, ...]:
        return tuple(
            entry(setting, self[setting], self._synonyms(setting), read_only=False)
            for setting in topic.SETTINGS.values()
        )

    def _synonyms(self, setting: TopicSetting[Any]) -> tuple[ConfigSynonym, ...]:
        found = []
        if setting.name in self.overrides:
            source = ConfigSource.DYNAMIC_TOPIC_CONFIG
            found.append(ConfigSynonym(name=setting.name, value=setting.render(self[setting]), source=source))
        for synonym in setting.synonyms:
            found += self._broker.synonyms(synonym.setting)
        if not setting.synonyms:
            default = setting.render(setting.default)
            found.append(ConfigSynonym(name=setting.name, value=default, source=ConfigSource.DEFAULT_CONFIG))
        return tuple(found)


def _parse(name: str, text: str | None) -> Any:
    setting = topic.SETTINGS.get(name)
    if setting is None:
        raise ConfigError(f"Unknown topic setting {name}{did_you_mean(name, topic.SETTINGS)}")
    if text is None:
        raise ConfigError(f"{name} has no value; give one, or leave the setting out for its default.")
    return setting.parse(text)


def _inherited(setting: TopicSetting[T], broker: BrokerConfig) -> T:
    for synonym in setting.synonyms:
        value = broker[synonym.setting]
        if value is not None:
            return cast(T, synonym.convert(value))
    return setting.default
