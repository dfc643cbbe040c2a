"""Write the SDK for threads from the SDK for asyncio: `_sync` from `_async`, one way of writing each thing.

What is left of a module when `async`, `await` and the prefix `Async` are gone works with threads; where tasks and
threads truly differ there are modules by hand on both sides (`BY_HAND`). The result is committed, so that no install
needs this script; `make check` and a test compare.

    python tools/unasync.py            write what has changed
    python tools/unasync.py --check    say what is out of date, with exit code 1
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

CLIENT = Path(__file__).resolve().parents[1] / "client" / "aliquot" / "client"
BY_HAND = frozenset({"__init__.py", "seam.py", "leasing.py"})
HEADER = "# Written by tools/unasync.py from {source}. Change that, then `make sync`.\n"

RULES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\ban `async with`", "a `with`"),
        (r"\basync (def|with|for)\b", r"\1"),
        (r"\bawait ", ""),
        (r"\b(_?)Async([A-Z]\w*)", r"\1\2"),
        (r"\b_async\b", "_sync"),
        (r"__a(enter|exit|iter|next)__", r"__\1__"),
        (r"\bgrpc\.aio\b", "grpc"),
        (r"\bAioRpcError\b", "RpcError"),
        (r"\bStopAsyncIteration\b", "StopIteration"),
        (r"`aclose`", "`close`"),
        (r"\bfor one event loop\b", "for any number of threads"),
    )
)


def translate(text: str) -> str:
    """The same module for threads, not yet formatted."""
    for pattern, replacement in RULES:
        text = pattern.sub(replacement, text)
    return text


def generate() -> dict[Path, str]:
    """Every module that is written, by its path."""
    made = {}
    for source in sorted((CLIENT / "_async").glob("*.py")):
        if source.name not in BY_HAND:
            header = HEADER.format(source=source.relative_to(CLIENT.parents[2]))
            target = CLIENT / "_sync" / source.name
            made[target] = _format(header + translate(source.read_text(encoding="utf-8")), target)
    return made


def _format(text: str, target: Path) -> str:
    """Names have become shorter: imports are sorted, and lines broken, anew."""
    ruff = Path(sysconfig.get_path("scripts")) / "ruff"
    fix = ["check", "--quiet", "--select", "I,UP028", "--fix", "--unsafe-fixes"]
    # Said here, because ruff would tell by whether the modules are there already.
    fix += ["--config", "lint.isort.known-first-party = ['aliquot']"]
    for arguments in (fix, ["format", "--quiet"]):
        command = [str(ruff), *arguments, "--stdin-filename", str(target), "-"]
        text = subprocess.run(  # noqa: S603 - our own tool
            command, input=text, check=True, capture_output=True, text=True, cwd=CLIENT.parents[2]
        ).stdout
    return text


def main() -> int:
    """Write, or compare."""
    parser = argparse.ArgumentParser(description="Write the SDK for threads from the SDK for asyncio.")
    parser.add_argument("--check", action="store_true", help="write nothing; say what is out of date, with exit code 1")
    args = parser.parse_args()
    made = generate()
    outdated = [path for path, text in made.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    left_over = [path for path in (CLIENT / "_sync").glob("*.py") if path not in made and path.name not in BY_HAND]
    if args.check:
        for path in [*outdated, *left_over]:
            sys.stdout.write(f"{path.relative_to(CLIENT.parents[2])} is out of date: run `make sync`\n")
        return 1 if outdated or left_over else 0
    for path in outdated:
        path.write_text(made[path], encoding="utf-8")
        sys.stdout.write(f"wrote {path.relative_to(CLIENT.parents[2])}\n")
    for path in left_over:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
