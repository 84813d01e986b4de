"""Tests of the pages that are drawn."""
