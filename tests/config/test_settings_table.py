"""The table agrees with itself, with Kafka and with its document."""

from pathlib import Path
from typing import Any

import pytest

from kbus.config import BrokerConfig, TopicConfig, broker, topic
from kbus.config.markdown import render
from kbus.config.setting import BrokerSetting, Setting, TopicSetting

ALL: list[Setting[Any]] = [*broker.SETTINGS.values(), *topic.SETTINGS.values()]


@pytest.mark.parametrize("setting", ALL, ids=lambda setting: setting.name)
def test_every_default_is_a_valid_value_that_reads_back(setting: Setting[Any]) -> None:
    text = setting.render(setting.default)
    if text is not None:
        assert setting.parse(text) == setting.default


@pytest.mark.parametrize("setting", topic.SETTINGS.values(), ids=lambda setting: setting.name)
def test_a_topic_default_is_what_an_unconfigured_broker_gives(setting: TopicSetting[Any]) -> None:
    assert TopicConfig(BrokerConfig())[setting] == setting.default


@pytest.mark.parametrize("setting", topic.SETTINGS.values(), ids=lambda setting: setting.name)
def test_only_the_last_synonym_has_a_value_by_default(setting: TopicSetting[Any]) -> None:
    defaults = [synonym.setting.default for synonym in setting.synonyms]
    assert all(default is None for default in defaults[:-1])
    assert all(default is not None for default in defaults[-1:])


def test_names_are_in_the_table_once() -> None:
    for module, kind in ((broker, BrokerSetting), (topic, TopicSetting)):
        names = [value.name for value in vars(module).values() if isinstance(value, kind)]
        assert len(names) == len(set(names)) == len(module.SETTINGS)


def test_defaults_are_kafkas() -> None:
    """Where ours differ, the document says so: listeners, the connection limits, the session timeout."""
    config = TopicConfig(BrokerConfig())
    assert config[topic.SEGMENT_BYTES] == 1024**3
    assert config[topic.SEGMENT_MS] == config[topic.RETENTION_MS] == 7 * 24 * 3600 * 1000
    assert config[topic.MAX_MESSAGE_BYTES] == 1048588
    assert config[topic.FLUSH_MESSAGES] == config[topic.FLUSH_MS] == 2**63 - 1
    assert config[topic.CLEANUP_POLICY] == ("delete",)
    assert config[topic.UNCLEAN_LEADER_ELECTION_ENABLE] is False
    assert config[topic.MIN_INSYNC_REPLICAS] == 1
    assert BrokerConfig()[broker.REPLICA_LAG_TIME_MAX_MS] == 30_000


def test_connection_limits_are_finite_by_default() -> None:
    config = BrokerConfig()
    assert config[broker.MAX_CONNECTIONS] < 10_000
    assert config[broker.MAX_CONNECTIONS_PER_IP] <= config[broker.MAX_CONNECTIONS]


def test_the_document_is_current() -> None:
    document = Path(__file__).parents[2] / "docs" / "CONFIGURATION.md"
    assert document.read_text() == render(), "run scripts/generate-config-docs"
