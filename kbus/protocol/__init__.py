"""Kafka's wire protocol: frames, the API registry over kio, error codes."""
