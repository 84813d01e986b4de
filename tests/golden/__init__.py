"""Files of earlier releases and known answers."""
