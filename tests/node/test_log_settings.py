"""A topic's settings reach its logs."""

import pytest

from kbus.config import BrokerConfig, TopicConfig
from kbus.node.log_settings import log_config


@pytest.mark.parametrize(
    ("codec", "level"), [("gzip", 9), ("lz4", 5), ("zstd", 19), ("snappy", None), ("producer", None)]
)
def test_the_level_that_counts_is_that_of_the_codec(codec: str, level: int | None) -> None:
    overrides: dict[str, str | None] = {
        "compression.type": codec,
        "compression.gzip.level": "9",
        "compression.lz4.level": "5",
        "compression.zstd.level": "19",
    }
    broker = BrokerConfig()
    assert log_config(broker, TopicConfig(broker, overrides)).compression_level == level
