"""Kafka's record batch format (magic 2): header view, record codec, compression, control records."""
