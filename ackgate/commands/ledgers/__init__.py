"""``ackgate ledgers`` and ``ackgate bookies``: look into storage, and repair copies."""
