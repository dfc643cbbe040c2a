"""One request from its first fact to its last, as a trace and as a timeline."""
