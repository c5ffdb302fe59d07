"""Batches and records: codecs, checks, and agreement with other clients."""
