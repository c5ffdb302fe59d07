"""kbus: a replicated, Kafka-compatible message bus."""

__version__ = "0.1.0"
