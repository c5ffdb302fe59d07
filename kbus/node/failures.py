"""The one place where an exception becomes a Kafka error code."""

import logging
from typing import Final

from kbus.config import ConfigError
from kbus.protocol.errors import ErrorCode, KafkaError

log = logging.getLogger(__name__)

_MAX_MESSAGE_CHARACTERS: Final = 1000
"""A message that quotes the client must fit into the field it is sent in, whatever the client sent."""


def describe_failure(error: Exception, what: str) -> tuple[ErrorCode, str | None]:
    """(code, message) for the client. What nobody expected is logged whole and told in no detail."""
    if isinstance(error, KafkaError):
        return error.code, _shortened(error.message) if error.message else None
    if isinstance(error, ConfigError):
        return ErrorCode.invalid_config, _shortened(str(error))
    if isinstance(error, OSError):
        log.error("%s: disk error: %s", what, error)
        return ErrorCode.kafka_storage_error, error.strerror
    log.error("%s failed", what, exc_info=error)
    return ErrorCode.unknown_server_error, None


def _shortened(message: str) -> str:
    if len(message) <= _MAX_MESSAGE_CHARACTERS:
        return message
    half = _MAX_MESSAGE_CHARACTERS // 2
    return f"{message[:half]} … {message[-half:]}"
