"""Tests with malformed and malicious input."""
