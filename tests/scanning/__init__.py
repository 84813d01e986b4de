"""Tests of scans."""
