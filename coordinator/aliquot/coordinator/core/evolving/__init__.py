"""Parts of `evolve`: how facts of one subject change the State."""
