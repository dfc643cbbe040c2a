"""`python -m tests.fuzz --minutes N --json`: attack a coordinator for so long; the last line says what was found."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time

from tests.fuzz.attacking import attack


def main() -> int:
    """Exit code 1 when anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--json", action="store_true", help="the last line is JSON")
    arguments = parser.parse_args()
    _say(f"seed {arguments.seed}")
    result = asyncio.run(attack(arguments.minutes * 60, arguments.seed, quiet_s=10.0))
    for finding in dict.fromkeys(result.findings):
        _say(finding)
    document = result.document()
    _say(json.dumps(document) if arguments.json else "  ".join(f"{name} {value}" for name, value in document.items()))
    return 1 if result.findings else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
