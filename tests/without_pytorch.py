"""Programs that find aliquot installed as it is here, but for what serves PyTorch.

Each agent of `aliquot up` would load that for the first lease that comes, which takes longer than all else that it does
at its start.
"""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path


def without_pytorch(folder: Path) -> str:
    """A folder for their PYTHONPATH, made below this one."""
    installed = metadata.distribution("aliquot")
    about = folder / "without PyTorch" / "aliquot-0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(installed.read_text("METADATA") or "")
    named = installed.read_text("entry_points.txt") or ""
    (about / "entry_points.txt").write_text(re.sub(r"remote = .*:TorchService.*\n", "", named))
    return str(about.parent)
