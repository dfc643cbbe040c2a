"""Public recipes as people run them: each a program of its own that says `cuda`, in one lease; and the table of them.

    aliquot run --remote --gpu 0.5,10Gi -- python -m tests.remote_scripts.corpus [--write docs/remote.md] [NAME…]

They are written from the recipes' public descriptions, small enough for a minute each. One passes that ends with 0.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

FOLDER = Path(__file__).parent / "recipes"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.py")))
TIMEOUT_S = 600
_BEGIN, _END = "<!-- recipes: begin -->\n", "<!-- recipes: end -->\n"


def missing(name: str) -> str:
    """A package that a recipe imports and that is not installed; empty: all are there."""
    tree = ast.parse((FOLDER / f"{name}.py").read_text())
    imports = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imports |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return next((each for each in sorted({name.split(".")[0] for name in imports}) if find_spec(each) is None), "")


def run(name: str) -> str:
    """What keeps a recipe from passing; empty: it passes."""
    command = [sys.executable, "-W", "ignore", str(FOLDER / f"{name}.py")]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not over after {TIMEOUT_S} s"
    return "" if done.returncode == 0 else f"exit code {done.returncode}\n{done.stderr[-4000:]}"


def table(results: dict[str, str]) -> str:
    """Of recipes and what became of each."""
    passed = sum(not problem for problem in results.values())
    lines = [
        f"**{passed} of {len(results)} pass unmodified.**",
        "",
        "| recipe | what it does | passes |",
        "|---|---|---|",
    ]
    for name, problem in results.items():
        said = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text())) or ""
        about = " ".join(said.split()).rstrip(".")
        lines.append(f"| `{name}` | {about} | {'[no](remote-scripts.md#what-does-not)' if problem else 'yes'} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """0: all that were run pass."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="put the table into this file")
    parser.add_argument("--json", type=Path, help="put what became of each there")
    parser.add_argument("names", nargs="*", default=NAMES)
    args = parser.parse_args()
    results = {}
    for name in args.names:
        results[name] = f"{absent} is not installed" if (absent := missing(name)) else run(name)
        sys.stdout.write(f"{name}: {results[name].partition(chr(10))[0] or 'passes'}\n")
        sys.stdout.flush()
    if args.json:
        args.json.write_text(json.dumps(results))
    if args.write:
        text = args.write.read_text()
        inside = re.compile(re.escape(_BEGIN) + ".*?" + re.escape(_END), re.DOTALL)
        args.write.write_text(inside.sub(lambda _: _BEGIN + table(results) + _END, text))
    return int(any(results.values()))


if __name__ == "__main__":
    sys.exit(main())
