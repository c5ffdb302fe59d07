"""The table of settings as a document: `python -m kbus.config.markdown` prints docs/CONFIGURATION.md."""

from collections.abc import Iterable
from typing import Any

from kbus.config import broker, topic
from kbus.config.setting import BrokerSetting, ConfigType, Setting, TopicSetting

_HEAD = """\
# Configuration

<!-- Written by scripts/generate-config-docs from kbus/config. Change it there. -->

Settings have Kafka's names and meanings. A broker reads them from a Java `.properties` file, the one that
`kafka-server-start` takes, with `--set name=value` over it: `kbus broker start server.properties --set
num.partitions=3`. Names of Kafka's that are not in the table are accepted with a warning; names that are in
neither are refused. Topics are configured when they are created (`kbus topic create NAME --config
retention.ms=60000`) and later (`kbus topic alter`).
"""

_BROKER = """\
## Broker

"Changes" says when a new value counts: *read-only* settings are read at start, *cluster-wide* ones can be
changed on a running cluster, for one broker or for all.
"""

_TOPIC = """\
## Topic

What a topic does not set it takes from the broker, from the first of the settings in the last column that has
a value there.
"""


def render() -> str:
    broker_rows = _rows(
        ("Name", "Type", "Default", "Values", "Changes", "What for"),
        map(_broker_row, _sorted(broker.SETTINGS)),
    )
    topic_rows = _rows(
        ("Name", "Type", "Default", "Values", "What for", "From the broker's"),
        map(_topic_row, _sorted(topic.SETTINGS)),
    )
    return f"{_HEAD}\n{_BROKER}\n{broker_rows}\n{_TOPIC}\n{topic_rows}"


def _sorted(settings: dict[str, Any]) -> list[Any]:
    return [settings[name] for name in sorted(settings)]


def _broker_row(setting: BrokerSetting[Any]) -> tuple[str, ...]:
    return (*_common(setting), setting.update_mode.value, setting.doc)


def _topic_row(setting: TopicSetting[Any]) -> tuple[str, ...]:
    synonyms = ", ".join(f"`{synonym.setting.name}`" for synonym in setting.synonyms)
    return (*_common(setting), setting.doc, synonyms or "–")


def _common(setting: Setting[Any]) -> tuple[str, ...]:
    default = setting.render(setting.default)
    if default is None:
        shown = "none"
    else:
        shown = f"`{default}`" if default else "empty"
    values = "" if setting.type is ConfigType.BOOLEAN else setting.kind.expects
    return f"`{setting.name}`", setting.type.name.lower(), shown, values


def _rows(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


if __name__ == "__main__":
    print(render(), end="")
