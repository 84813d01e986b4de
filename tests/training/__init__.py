"""Tests of marking while training."""
