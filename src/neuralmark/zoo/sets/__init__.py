"""Data sets, a file each: the file's name is the data set's, nothing else is edited."""
