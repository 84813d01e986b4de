"""Tests of keys and the files that hold them."""
