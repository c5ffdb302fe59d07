"""The one exception type that carries a Kafka error code to the client."""

from kbus.protocol.kio import ErrorCode

__all__ = ["ErrorCode", "KafkaError"]


class KafkaError(Exception):
    """A request, or one part of it, is refused: `code` goes to the client, with `message` where it fits."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message
