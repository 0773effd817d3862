"""Topics as they are loaded: producers, messages, subscriptions with their drivers, and the registry."""
