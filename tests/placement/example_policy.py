"""The example of docs/placement.md, taken from there so that it can't go stale."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

DOCUMENT = Path(__file__).parents[2] / "docs" / "placement.md"


def example() -> ModuleType:
    """The first Python block under "Your own policy", as a module."""
    text = DOCUMENT.read_text(encoding="utf-8").split("## Your own policy", 1)[1]
    block = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert block is not None
    module = ModuleType("example_policy")
    exec(compile(block.group(1), str(DOCUMENT), "exec"), module.__dict__)  # our own documentation
    return module
