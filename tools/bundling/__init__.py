"""A folder with everything that a machine without a network needs (`make bundle`)."""
