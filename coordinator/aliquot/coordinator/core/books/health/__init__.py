"""Cards that are not well: incidents from the first bad sign to service, and the states that cards go through."""
