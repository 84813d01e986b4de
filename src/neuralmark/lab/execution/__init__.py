"""Running what was planned: data, devices, training, attacks; kept in a store."""
