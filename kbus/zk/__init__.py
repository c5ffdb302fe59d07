"""ZooKeeper: the coordination store and its session, Kafka's znodes, the fenced write, an embedded server."""
