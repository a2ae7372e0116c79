"""Load on a live cluster, for benchmarks, demos and tests."""
