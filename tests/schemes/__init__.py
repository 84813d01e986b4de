"""The schemes, one by one; what all have in common is in conformance/."""
