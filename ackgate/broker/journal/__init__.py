"""The delivery journal of a topic: one tuple per event on the hot path, columns and blocks in a task."""
