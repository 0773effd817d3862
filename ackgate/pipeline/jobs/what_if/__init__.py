"""What-if: recorded traffic again, under other settings.

delivery_journal --> events of a subscription --> tape --> writes --> gate, exposure --> sums

Pure but for `job` and `frames`, which run it on Spark.
"""
