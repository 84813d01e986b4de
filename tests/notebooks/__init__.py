"""Tests that the notebooks run."""
