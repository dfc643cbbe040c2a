"""What every part of aliquot shares: values, request grammar, clock, configuration, logging, TLS."""
