"""Breaks a local cluster on purpose, and tells what it did about it."""
