"""A local cluster of real processes: what it is to be, its supervisor, and how to talk to that."""
