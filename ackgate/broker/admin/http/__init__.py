"""HTTP below the paths: requests, replies, routes, refusals, browsers, other brokers."""
