"""The method itself: pure functions on numpy arrays. No files, clock, torch or global randomness."""
