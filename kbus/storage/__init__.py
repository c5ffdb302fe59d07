"""Partition logs on disk, in Kafka's layout and formats: writing, reading, flushing, recovering, deleting."""
