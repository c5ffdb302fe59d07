"""One file for each API: what it does in every version, from a decoded request to a response.

A handler does what it does to a log before it returns, without awaiting, and returns a response, a
future of one, or, for administration through ZooKeeper, a task.
"""
