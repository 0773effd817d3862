"""Statistics of topics, subscriptions and consumers: taken once, frozen, rendered by others."""
