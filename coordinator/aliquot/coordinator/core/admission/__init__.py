"""Who waits gets something: the walk along the lines, room made for those who are owed it, and why others wait."""
