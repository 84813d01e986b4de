"""Tests of the callbacks for other frameworks."""
