"""`supply`: which nodes are on offer and ordered, and the program that carries orders out."""
