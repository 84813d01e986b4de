"""Tests of work that other machines do."""
