"""The real Pulsar, with its metadata in a real ZooKeeper and a bookie, to be looked at from outside."""

from tests.support.real_pulsar.process import PulsarFailedError, RealPulsar, pulsar_missing

__all__ = ["PulsarFailedError", "RealPulsar", "pulsar_missing"]
