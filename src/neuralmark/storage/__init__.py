"""Files on the disk: written whole or not at all, changed under a journal, resumed by bookmark."""
