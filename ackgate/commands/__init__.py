"""The command line: reads files and asks brokers over HTTP.

Each command loads only what it needs.
"""
