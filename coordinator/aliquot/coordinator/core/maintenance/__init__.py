"""Maintenance windows: when nodes are to be left alone, once or every week, and what that means for what runs there."""
