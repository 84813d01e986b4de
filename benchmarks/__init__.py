"""Benchmarks: each prints ratios against a peer measured in the same run (see README.md)."""
