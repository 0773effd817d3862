"""Schemas of topics: their versions in the metadata store, and which may follow which."""
