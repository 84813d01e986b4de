"""Architectures, a file each: the file's name is the architecture's, nothing else is edited."""
