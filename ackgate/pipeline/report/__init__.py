"""The page that a job leaves beside its results: one HTML file that fetches nothing.

Rules of this room:

- Pure. Numbers, rows and names go in; text comes out. The only thing read is the libraries' own code.
- A chart is a Vega-Lite specification (a dict) with its data in it. No job draws anything itself.
- Names from outside are data, never markup and never part of an expression. The page allows no script
  but its own, by their hashes, and no fetch.
- Everything is bounded: the jobs choose how many rows and charts there are, and say what they left out.
"""
