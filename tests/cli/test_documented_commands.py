"""Every command line that the README and the documentation show is one that the program takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from aliquot.cli.main import build_parser, commands

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINE = re.compile(r"^(?:\$ | {4})(?:[A-Z_]+=\S+ )*aliquot (?P<whole>.*)$|`aliquot (?P<named>[a-z][^`]*)`", re.MULTILINE)
_NOT_OURS = re.compile(r"  #| > | \| ")
"""What follows is a remark, or another program's."""


def shown() -> list[tuple[str, str, bool]]:
    """Page, words, and whether they are all there are: within a sentence, a command may only be named."""
    found: dict[tuple[str, str, bool], None] = {}
    for page in PAGES:
        for match in LINE.finditer(page.read_text().replace("\\\n", " ")):
            words = _NOT_OURS.split(match["whole"] or match["named"])[0].strip()
            found[page.name, re.sub(r"\$\([^)]*\)", "x", words).replace("…", "x"), bool(match["whole"])] = None
    return list(found)


@pytest.mark.parametrize(("page", "words", "whole"), shown())
def test_it_is_taken(page: str, words: str, whole: bool) -> None:
    arguments = [*shlex.split(words), *(() if whole else ("--help",))]
    try:
        build_parser(commands(arguments), arguments).parse_whole(arguments)
    except SystemExit as helped:
        assert helped.code == 0
