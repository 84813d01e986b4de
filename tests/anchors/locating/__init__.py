"""Tests of locating."""
