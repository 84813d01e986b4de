"""Tests of files and the journal."""
