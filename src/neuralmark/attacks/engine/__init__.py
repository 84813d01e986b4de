"""Launching attacks, judging what they leave, suites and their cards."""
