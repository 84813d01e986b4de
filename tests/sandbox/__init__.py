"""Tests of a process that reads suspects."""
