"""The audit: did every message reach every subscription, how often, how late, and why again.

delivery_journal --> deliveries (how manieth, why again) --> fates (acked, outstanding, lost) --> results

Functions over DataFrames for now. The command does not offer it before brokers write the journal that it
reads: over no events at all it would call everything fine.
"""
