"""Reads files that people write: text in UTF-8; YAML, JSON or TOML by the ending; CSV as spreadsheets export it.

Every failure of reading is a `ConfigError` that names the file and says what to do, whatever the bytes are.
"""

from __future__ import annotations

import csv
import io
import json
import sys
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from aliquot.common.errors import AliquotError, ConfigError
from aliquot.common.text import nearest

STDIN = "-"
TEXT_BYTES_MAX = 256 << 20
MANY = 10**12
"""More than any number in a list of nodes or requests."""


def read_text(path: Path) -> str:
    """The text of a file, or of `-` (standard input); a byte order mark is left out. Raises `ConfigError`."""
    try:
        with nullcontext(sys.stdin.buffer) if str(path) == STDIN else path.open("rb") as file:
            data = file.read(TEXT_BYTES_MAX + 1)
    except OSError as error:
        said = error.strerror or error
        raise ConfigError(f"{path}: {said}", hint="name a file that exists and can be read") from error
    if len(data) > TEXT_BYTES_MAX:  # a device that never ends would fill the memory
        raise ConfigError(f"{path} is longer than {TEXT_BYTES_MAX >> 20} MiB", hint="name a file that people write")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path}: line {line} is not UTF-8 (byte 0x{data[error.start]:02x})",
            hint="save it as UTF-8: `iconv -f latin1 -t utf-8` if it comes from an older program",
        ) from error


@contextmanager
def naming(where: Path | str) -> Iterator[None]:
    """What is wrong with what a file says becomes a `ConfigError` that names the file, or the line in it."""
    try:
        yield
    except AliquotError as error:
        named = error.message if str(where) in error.message else f"{where}: {error.message}"
        raise ConfigError(named, hint=error.hint) from error


def read_document(path: Path, *, exact: bool = False) -> Any:  # noqa: ANN401 - whatever the file holds
    """What a YAML, `.json` or `.toml` file holds. `exact`: fractions stay text, so that no float rounds them (but in
    YAML, which reads them by itself). Raises `ConfigError`.
    """
    return parse_document(path, read_text(path), exact=exact)


def parse_document(path: Path, text: str, *, exact: bool = False) -> Any:  # noqa: ANN401
    """The same, of a text that was read."""
    # Imported here: most commands read no file, and this takes a tenth of their time.
    import yaml  # noqa: PLC0415

    try:
        match path.suffix.lower():
            case ".json":
                return json.loads(text, parse_float=str if exact else None)
            case ".toml":
                return tomllib.loads(text, parse_float=str if exact else float)
        return yaml.safe_load(text)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        hint = "YAML, .json and .toml are read"
        if "\\t" in str(error):
            hint = "YAML is indented with blanks, never with tabs"
        raise ConfigError(f"{path} can't be read: {error}", hint=hint) from error


NODE_COLUMNS = (
    *("name", "sn", "model", "gpus", "gpu", "memory_per_gpu"),
    *("cpu", "cpu_milli", "host_memory", "memory_mib", "pool"),
)
"""Of lists of nodes: our own and, where two say the same, those of public traces."""


def refuse_unknown(path: Path, columns: Iterable[str], known: Collection[str], *, misspelt: bool = False) -> None:
    """Raise `ConfigError` for a column that nobody reads: without what it says all that follows would be wrong, and
    nobody would notice. `misspelt`: only for one that looks like another; lists of others' have more than is read.
    """
    for column in sorted(set(columns) - set(known)):
        close = nearest(column, known, cutoff=0.8 if misspelt else 0.6)
        if misspelt and not close:
            continue
        meant = f"did you mean {close[0]}? " if close else ""
        hint = f"{meant}the columns are {', '.join(sorted(known))}"
        raise ConfigError(f"{path}: unknown column {column!r}", hint=hint)


def read_csv(path: Path) -> tuple[frozenset[str], list[tuple[int, Mapping[str, str]]]]:
    """The columns of a CSV file, and its rows with their lines' numbers: names of columns in lower case, everything
    without blanks around it, rows without any text left out. Commas, semicolons and tabs may separate. Raises
    `ConfigError`, also for a column that is there twice and for a row with more in it than the head: one of the two
    would be lost, and nobody would notice.
    """
    text = read_text(path)
    head = text[:1] and text.splitlines()[0]
    separator = max(",;\t", key=head.count)
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator)
    rows.fieldnames = [name.strip().lower() for name in rows.fieldnames or ()]
    while rows.fieldnames and not rows.fieldnames[-1]:
        rows.fieldnames.pop()  # spreadsheets write separators for columns that somebody emptied
    if twice := {name for name in rows.fieldnames if name and rows.fieldnames.count(name) > 1}:
        raise ConfigError(f"{path}: more than one column {min(twice)!r}", hint="leave one of them")
    found: list[tuple[int, Mapping[str, str]]] = []
    try:
        for row in rows:
            # What is beyond the head comes as a list, under no name.
            if any(map(str.strip, row.pop(None, ()))):
                hint = f'put what has a "{separator}" in it in quotes: "0.5,10Gi"'
                raise ConfigError(f"{path}: line {rows.line_num} has more cells than the head", hint=hint)
            cells = {name: (text or "").strip() for name, text in row.items()}
            if any(cells.values()):
                found.append((rows.line_num, cells))
    except csv.Error as error:
        raise ConfigError(f"{path}: line {rows.line_num}: {error}", hint="write plain CSV") from error
    return frozenset(rows.fieldnames), found


def whole(row: Mapping[str, str], *names: str, most: int = MANY) -> int | None:
    """The number in the first of these columns that has text, which spreadsheets may have written as 4.0; None: none
    has. Raises `ConfigError`.
    """
    name = next((name for name in names if row.get(name)), "")
    number, _, part = row.get(name, "").partition(".")
    if name and (not number.isdecimal() or part.strip("0") or len(number) > len(str(MANY)) or int(number) > most):
        raise ConfigError(f"{name} is {row[name]!r}", hint=f"write a whole number from 0 to {most}")
    return int(number) if name else None
