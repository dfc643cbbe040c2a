"""Bounds of what a session may hold or say. Both ends know them; the server enforces them."""

from __future__ import annotations

PROTOCOL = 1
"""Version of what is said. Raised when an older server could not understand a newer client."""

HANDLES_MAX = 1 << 20
"""Allocations that live at once. Each may have any number of views, which never travel."""

TEMPLATES_MAX = 8192
"""Interned operators that the server keeps at once. A client that needs more defines an old number anew."""

TEMPLATES_BYTES_MAX = 64 << 20
"""Of the definitions of all operators that the server keeps: a list of a few thousand tensors takes 100 kB."""

ARGUMENTS_MAX = 16384
"""Arguments of one operator, members of lists counted one by one."""

DIMENSIONS_MAX = 64
"""Of one tensor, as in PyTorch."""

ELEMENTS_MAX = 1 << 48
"""Of one tensor: no product of sizes and strides that passes overflows 64 bits as bytes."""

RECORDINGS_MAX = 256
"""Captured steps that a session keeps at once."""

RECORDED_WORDS_MAX = 4 << 20
"""Of one captured step."""

GRAPHS_MAX = 1024
"""Graphs that a session keeps at once."""

GRAPH_NODES_MAX = 65536
"""Of one graph."""
