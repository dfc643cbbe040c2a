"""Where output goes: tables for people and JSON for scripts on stdout, progress and errors on stderr."""

from __future__ import annotations

import argparse
import os
import sys

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from aliquot.cli import _words as words
from aliquot.cli._json import dumps, error_document
from aliquot.cli._table import PLAIN_WIDTH, PLAIN_WIDTH_MIN, table_of
from aliquot.client import AliquotError, Explanation, PoolError
from aliquot.common.tokens import without_tokens


class Out:
    """One command's output. `as_json`: exactly one JSON document, or JSON lines, and nothing else on stdout.

    A command hands over both what programs read and what people read; only one of them is written.
    """

    def __init__(self, *, as_json: bool = False) -> None:
        self.look_again(as_json=as_json)

    @classmethod
    def of(cls, args: argparse.Namespace) -> Out:
        """The output that the options ask for."""
        return cls(as_json=bool(getattr(args, "json", False)))

    def look_again(self, *, as_json: bool) -> None:
        """Standard output and error may be something else now than they were."""
        self.as_json = as_json
        self.console, self.err = _console(sys.stdout), _console(sys.stderr)

    def document(self, value: object) -> None:
        """The one JSON document of a command; for people nothing."""
        if self.as_json:
            sys.stdout.write(dumps(value, indent=2) + "\n")
            sys.stdout.flush()

    def line(self, value: object) -> None:
        """One JSON line of a stream."""
        sys.stdout.write(dumps(value) + "\n")
        sys.stdout.flush()

    def show(self, *things: RenderableType) -> None:
        """Results for people, on stdout."""
        if not self.as_json:
            for thing in things:
                self.console.print(thing, highlight=False)

    def word(self, text: str) -> None:
        """Text for people to copy, which is never wrapped."""
        if not self.as_json:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def note(self, text: str | Text) -> None:
        """Progress and remarks, on stderr, so that they never mix with a result."""
        if not self.as_json:
            self.err.print(text, highlight=False)

    def error(self, error: AliquotError) -> None:
        """An error, on stderr: what is wrong, and what to do."""
        if self.as_json:
            sys.stderr.write(dumps(error_document(error)) + "\n")
            return
        self.err.print(Text.assemble(("error: ", "bold red"), without_tokens(error.message)), highlight=False)
        if isinstance(error, PoolError):
            for violation in error.violations:
                if violation.description != error.message:
                    self.err.print(Text.assemble("  ", (violation.subject, "bold"), f": {violation.description}"))
            if error.explanation is not None and len(error.explanation.missing) > 1:
                self.err.print(missing_table(error.explanation))
        if error.hint:
            self.err.print(Text.assemble(("hint: ", "bold cyan"), without_tokens(error.hint)), highlight=False)


def missing_table(explanation: Explanation) -> Table:
    """What is missing for each class of devices, and what would change that."""
    return table_of(
        explanation.missing,
        {
            "CLASS": lambda missing: missing.device_class,
            "DEVICES": lambda missing: str(missing.devices) if missing.devices else words.UNKNOWN,
            "WHY NOT": lambda missing: missing.detail or missing.reason,
            "SMALLEST CHANGE": lambda missing: missing.smallest_change or words.UNKNOWN,
        },
        right=("DEVICES",),
    )


def _console(stream: object) -> Console:
    is_terminal = hasattr(stream, "isatty") and stream.isatty()
    asked = os.environ.get("COLUMNS", "")
    width = None if is_terminal else int(asked) if asked.isdecimal() and int(asked) >= PLAIN_WIDTH_MIN else PLAIN_WIDTH
    # Names, reasons and labels are other people's words: brackets in them are text, and no colons become pictures.
    return Console(file=stream, width=width, soft_wrap=False, markup=False, emoji=False)  # type: ignore[arg-type]
