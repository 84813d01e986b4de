"""Tests of models behind URLs, against real servers on loopback."""
