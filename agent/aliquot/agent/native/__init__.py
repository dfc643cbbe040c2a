"""The C parts and where to find them: the preload library and the simulated GPU."""
