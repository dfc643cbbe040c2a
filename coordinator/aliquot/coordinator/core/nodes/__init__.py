"""Nodes: declared, registered, compared with the books, silent, heard again, cordoned, drained, removed."""
