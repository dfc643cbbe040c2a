"""`python -m tools.monitoring` writes deploy/monitoring; `--check` says what there is not as it would be written."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.monitoring.dashboards import BOARDS
from tools.monitoring.grafana import as_json
from tools.monitoring.rules import as_yaml

FOLDER = Path(__file__).parents[2] / "deploy" / "monitoring"


def files() -> dict[Path, str]:
    """What is written, by where."""
    made = {FOLDER / "dashboards" / f"{board.uid}.json": as_json(board) for board in BOARDS}
    made[FOLDER / "rules.yaml"] = as_yaml()
    return made


def main() -> int:
    """Returns 1 where `--check` finds a file that is not as it should be."""
    stale = [path for path, text in files().items() if not path.is_file() or path.read_text("utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            sys.stderr.write(f"{path} is not as `python -m tools.monitoring` writes it\n")
        return int(bool(stale))
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
