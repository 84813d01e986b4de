"""How bytes come from afar: addresses, connections, ranges and the cache."""
