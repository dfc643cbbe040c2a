"""Files, modules and names in modules that pages, docstrings and comments put between backticks are there."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator

from tests.packaging.layout import REPOSITORY, source_roots

SUFFIXES = (".py", ".md", ".proto", ".toml", ".jsonl", ".def", ".service")
FOLDERS = [*source_roots(), *(REPOSITORY / name for name in ("bench", "deploy", "docs", "examples", "tests", "tools"))]
FILES = [
    path
    for path in (*(found for folder in FOLDERS for found in folder.rglob("*")), *REPOSITORY.iterdir())
    if path.is_file() and not {"__pycache__", "build"} & set(path.parts)
]
PLACES = {str(path.relative_to(REPOSITORY)) for path in FILES}
MODULES = {
    name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): name for name in PLACES if ".py" in name
}
WRITTEN_BY_HAND = sorted(
    name
    for name in PLACES
    if name.endswith((".py", ".md")) and "_pb2" not in name and not name.startswith(("CHANGELOG", "docs/decisions"))
)
ELSEWHERE = {"/etc/aliquot/config.toml", "aliquot/__init__.py"}
"""On the user's machine, and a file that must not be."""
_QUOTED = re.compile(r"`([\w./-]+?)(?:\(\))?`")
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def prose(name: str) -> Iterator[str]:
    """What of a file is meant for people: a page, or a module's strings and comments."""
    text = (REPOSITORY / name).read_text(encoding="utf-8")
    if name.endswith(".md"):
        yield _FENCED.sub("", text)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.startswith('"""')):
            yield token.string


def ends_with(whole: str, part: str, separator: str) -> bool:
    return whole == part or whole.endswith(separator + part)


def is_there(reference: str) -> bool:
    """A file by the end of its path; `module.name` by the end of the module's, where that names one at all."""
    if reference in SUFFIXES or reference.startswith("aliquot.v1."):
        return True  # a kind of file, or a name of the contract
    if reference.endswith(SUFFIXES):
        wanted = reference.removeprefix("../")
        return reference in ELSEWHERE or any(ends_with(place, wanted, "/") for place in PLACES)
    if not re.fullmatch(r"[a-z]\w*(\.[a-z]\w*)+\.\w+", reference):
        return True
    if any(ends_with(module, reference, ".") for module in MODULES):
        return True
    within, _, name = reference.rpartition(".")
    homes = [place for module, place in MODULES.items() if ends_with(module, within, ".")]
    return not homes or any(re.search(rf"\b{name}\b", (REPOSITORY / home).read_text()) for home in homes)


def test_what_is_referred_to_is_there() -> None:
    quoted = {(name, found) for name in WRITTEN_BY_HAND for text in prose(name) for found in _QUOTED.findall(text)}
    there = {found: is_there(found) for _, found in quoted}
    assert sorted((name, found) for name, found in quoted if not there[found]) == []


def test_the_readme_in_chinese_shows_the_same_commands() -> None:
    blocks = [
        _FENCED.findall((REPOSITORY / name).read_text(encoding="utf-8")) for name in ("README.md", "README.zh-CN.md")
    ]
    assert blocks[0] == blocks[1]
    links = re.findall(r"\]\(([^)#]+)", (REPOSITORY / "README.zh-CN.md").read_text(encoding="utf-8"))
    assert not [link for link in links if not (REPOSITORY / link).exists()]
