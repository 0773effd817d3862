"""Delayed messages at a broker: the trackers' storage, the shared index, and cancelling."""
