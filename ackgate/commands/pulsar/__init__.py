"""``ackgate pulsar``: a real Pulsar cluster, looked at read-only, for people and for programs."""
