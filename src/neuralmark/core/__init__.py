"""The method itself: pure functions of numpy arrays. No files, clock, torch or globals."""
