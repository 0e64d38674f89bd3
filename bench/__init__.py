"""End-to-end measurements: the figures that Foreload claims (`bench.figures`) and its peers beside it (`bench.peers`).

`registry` says what a figure is and when it holds; `stage` sets up what it is measured on (the test bucket on one CPU, the client on
another, fresh caches); `client` is the process that is measured; `rows` has a function for each figure. Ratios come from interleaved
runs on one machine; absolute times are recorded and not quoted. docs/guide/benchmarks.md explains how to read the results.
"""
