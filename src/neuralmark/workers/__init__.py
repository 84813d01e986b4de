"""Work that other machines do: a Ray cluster, for the laboratory and for scans."""
