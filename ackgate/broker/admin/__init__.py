"""The admin interface over HTTP: Pulsar's paths, and the metrics."""
