"""Which brokers there are, which of them serves what, and what the metadata store says to all of them."""
