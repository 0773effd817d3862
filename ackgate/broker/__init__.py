"""The broker: Pulsar's wire protocol, topics, the cluster, admin HTTP.

A room within this one never imports the files beside it; what it needs from another room it names as a
`Protocol`, or gets as an argument. From the bottom up::

    wire  <-  schemas, journal, delayed, cluster  <-  topic  <-  stats  <-  admin  <-  server, run
"""
