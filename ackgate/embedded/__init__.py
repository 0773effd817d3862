"""A subscription with storage on asyncio, without a broker: topics, subscriptions, consumers. Edge.

`open_embedded` opens a directory (or any ports). `ackgate` exports what hosts need of this room.
"""
