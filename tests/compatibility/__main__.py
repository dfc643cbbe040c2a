"""`python -m tests.compatibility`; see `shapes`."""

from __future__ import annotations

import argparse
import sys

from tests.compatibility import shapes

NOW = {"wire": shapes.wire, "facts": shapes.facts, "snapshot": shapes.snapshot}


def main() -> int:
    """The program; 1 when something broke."""
    parser = argparse.ArgumentParser(description=shapes.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rewrite", action="store_true", help="keep today's shapes as those of the last release")
    arguments = parser.parse_args()
    breaks = 0
    for name, shape_of in NOW.items():
        exists = (shapes.SAVED / f"{name}.json").exists()
        old, new = (shapes.saved(name) if exists else {}), shape_of()
        found = shapes.broken(name, old, new)
        for text in found:
            sys.stdout.write(f"{name}: BROKEN: {text}\n")
        for text in shapes.added(old, new):
            sys.stdout.write(f"{name}: new: {text}\n")
        breaks += len(found)
        if arguments.rewrite and not found:
            shapes.keep(name, new)
    if breaks and arguments.rewrite:
        sys.stdout.write("what broke was not kept: put it back as it was (a removed field's number stays reserved)\n")
    return 1 if breaks else 0


if __name__ == "__main__":
    sys.exit(main())
