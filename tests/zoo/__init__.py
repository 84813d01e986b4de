"""Tests of networks and data sets."""
