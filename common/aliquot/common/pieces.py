"""Programs that take device memory piece by piece, until they are refused, and say how far they came: what they share.

One line of JSON on standard output: `held_bytes`, and the `error` that refused more (0: nobody did).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from aliquot.common.quantity import parse_bytes

OUT_OF_MEMORY = 2
"""CUDA's number, which programs for other cards take, too."""


class Refused(Exception):
    """No more can be had."""

    def __init__(self, error: int, **told: object) -> None:
        """`told`: what else the answer is to say of it."""
        super().__init__(f"error {error}")
        self.told = {"error": error, **told}


def arguments(description: str) -> argparse.ArgumentParser:
    """What such a program can be told."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--piece", type=parse_bytes, default=64 << 20, help="bytes at a time (default 64Mi)")
    parser.add_argument("--most", type=parse_bytes, required=True, help="stop here if nobody refuses")
    parser.add_argument("--hold", action="store_true", help="keep it until standard input is closed")
    return parser


def answer(**told: object) -> dict[str, Any]:
    """Of a program that holds nothing yet."""
    return {"pid": os.getpid(), "held_bytes": 0, "error": 0, **told}


def take(options: argparse.Namespace, more: Callable[[int], object]) -> dict[str, Any]:
    """The answer, once `more`, which takes a piece of so many bytes, has raised `Refused`, or all is held."""
    said = answer()
    try:
        while said["held_bytes"] + options.piece <= options.most:
            more(options.piece)
            said["held_bytes"] += options.piece
    except Refused as refused:
        said |= refused.told
    return said


def say(said: Mapping[str, object], *, hold: bool = False) -> None:
    """Print an answer and, if it is to be held, wait."""
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    if hold:
        sys.stdin.read()
