"""Tests of embedding and verification."""
