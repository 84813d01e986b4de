"""Tests of arbitration."""
