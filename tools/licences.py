"""Licences of what we ask for or bring along: listed, and checked against those that we allow.

    python -m tools.licences PATH ...        wheels, or folders of packages

What metadata say counts; `SAID_ELSEWHERE` has those whose metadata say nothing that can be read.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

ALLOWED = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "Apache-2.0 WITH LLVM-exception",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "CC0-1.0",
        "ISC",
        "MIT",
        "MIT-0",
        "MIT-CMU",
        "MPL-2.0",
        "PSF-2.0",
        "Python-2.0",
        "Unlicense",
        "Zlib",
    }
)
"""By SPDX. MPL-2.0 is for whole files of others, which nobody here changes."""
ALLOWED_OF = {
    # The only kept driver of PostgreSQL with typed rows and pipelines; imported as it is, and replaceable by its user.
    "psycopg": "LGPL-3.0-only",
    "psycopg-binary": "LGPL-3.0-only",
    "psycopg-pool": "LGPL-3.0-only",
}
"""One that is not for all: by name of the distribution."""
WORDS = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "psfl": "PSF-2.0",
    "python software foundation license": "PSF-2.0",
    "the unlicense (unlicense)": "Unlicense",
}
"""As metadata say it without SPDX."""
SAID_ELSEWHERE: dict[str, str] = {}
"""By name of the distribution."""
_ONE_LINE_MAX = 60


def licence_of(one: metadata.Distribution) -> str:
    """Its licence as SPDX says it, or the words of its metadata; empty: it says none."""
    said = {name: one.metadata[name] for name in one.metadata}
    name = canonicalize_name(said["Name"])
    if name in SAID_ELSEWHERE:
        return SAID_ELSEWHERE[name]
    if expression := said.get("License-Expression", ""):
        return expression
    text = said.get("License", "").strip()
    classifiers = [
        each.rpartition(" :: ")[2]
        for each in one.metadata.get_all("Classifier") or []
        if each.startswith("License :: ") and not each.endswith("OSI Approved")
    ]
    candidates = [text] if text and len(text) <= _ONE_LINE_MAX and "\n" not in text else []
    candidates += classifiers
    for each in candidates:
        spdx = WORDS.get(each.lower(), each)
        if _allowed(spdx):
            return spdx
    return candidates[0] if candidates else ""


def _allowed(expression: str) -> bool:
    """Whether one may choose allowed ones alone: each of what AND joins, one of what OR joins."""
    parts = re.split(r"\s+AND\s+", expression.replace("(", "").replace(")", ""))
    return all(any(each.strip() in ALLOWED for each in re.split(r"\s+OR\s+", part)) for part in parts)


def _all(paths: Iterable[Path]) -> list[metadata.Distribution]:
    found = metadata.distributions(path=[str(path) for path in paths])
    return sorted(found, key=lambda one: canonicalize_name(one.metadata["Name"]))


def listing(paths: Iterable[Path]) -> str:
    """A line for each: name, version, licence."""
    return "".join(f"{one.metadata['Name']} {one.version}: {licence_of(one) or '?'}\n" for one in _all(paths))


def check(paths: Sequence[Path]) -> None:
    """Raises SystemExit, naming what has a licence that is not on the list, or none."""
    wrong = []
    for one in _all(paths):
        licence = licence_of(one)
        if not _allowed(licence) and licence != ALLOWED_OF.get(canonicalize_name(one.metadata["Name"])):
            wrong.append(f"{one.metadata['Name']} {one.version}: {licence or 'says none'}")
    if wrong:
        raise SystemExit("error: licences that tools/licences.py does not allow:\n  " + "\n  ".join(wrong))


def main() -> int:
    """The program."""
    paths = [Path(name) for name in sys.argv[1:]]
    sys.stdout.write(listing(paths))
    check(paths)
    return 0 if paths else 2


if __name__ == "__main__":
    sys.exit(main())
