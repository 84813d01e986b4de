"""How bytes come from afar: addresses, connections, ranges, the cache, and the relay."""
