"""``ackgate stats``: from a broker or from its files, for people and for programs."""
