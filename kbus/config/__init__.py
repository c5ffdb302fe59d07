"""The table of settings (Kafka's names), and what a broker and its topics are configured with.

`broker` and `topic` hold the settings as typed constants; `BrokerConfig` and `TopicConfig` hold values:

    config = BrokerConfig.load(path, overrides={"num.partitions": "3"})
    config[broker.NUM_PARTITIONS]        # an int
    TopicConfig(config, {"retention.ms": "1000"})[topic.RETENTION_MS]
"""

from kbus.config import broker, topic
from kbus.config.addresses import Endpoint, ZooKeeperAddress
from kbus.config.alter import Alteration, AlterOp, apply_alterations
from kbus.config.broker_config import BrokerConfig
from kbus.config.entries import ConfigEntry, ConfigSource, ConfigSynonym
from kbus.config.setting import ConfigError, ConfigType, Setting
from kbus.config.topic_config import TopicConfig

__all__ = [
    "AlterOp",
    "Alteration",
    "BrokerConfig",
    "ConfigEntry",
    "ConfigError",
    "ConfigSource",
    "ConfigSynonym",
    "ConfigType",
    "Endpoint",
    "Setting",
    "TopicConfig",
    "ZooKeeperAddress",
    "apply_alterations",
    "broker",
    "topic",
]
