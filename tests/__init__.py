"""Tests: they mirror the package; what several share is in `tests.support`."""
