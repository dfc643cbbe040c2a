"""Bounds of what a session may hold or say. Both ends know them; the server enforces them."""

from __future__ import annotations

PROTOCOL = 1
"""Version of what is said. Raised when an older server could not understand a newer client."""

HANDLES_MAX = 1 << 20
"""Allocations that live at once. Each may have any number of views, which never travel."""

TEMPLATES_MAX = 8192
"""Interned operators that the server keeps at once. A client that needs more defines an old number anew."""

DEFINITIONS_BYTES_MAX = 32 << 20
"""Of all that a session defined, as it was sent: operators, graphs and captured steps. A step of 10,000 operators takes
200 kB. In the server's memory they take up to 36 times as much.
"""

ARGUMENTS_MAX = 16384
"""Arguments of one operator, members of lists counted one by one."""

DIMENSIONS_MAX = 64
"""Of one tensor, as in PyTorch."""

ELEMENTS_MAX = 1 << 48
"""Of one tensor: no product of sizes and strides that passes overflows 64 bits as bytes."""

GRAPHS_MAX = 1024
"""Graphs that a session keeps at once."""
