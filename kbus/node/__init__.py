"""The broker: one process, one event loop, one owner for each piece of state."""
