"""Who waits gets something: the pass along the lines, room made for those entitled to it, and why others wait."""
