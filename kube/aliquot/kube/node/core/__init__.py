"""What is decided on the node, without I/O: identity of pods, names of cgroups, what is advertised."""
