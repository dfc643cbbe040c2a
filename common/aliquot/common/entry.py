"""What an entry point names for a command of ours: its name and its help are in the command line's own table."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple


class Entry(NamedTuple):
    """A command of `aliquot` that another root brings."""

    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
