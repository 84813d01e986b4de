"""Tests that the examples run."""
