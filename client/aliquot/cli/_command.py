"""The interface of commands, both built in and added by other distributions through entry points."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Protocol

from aliquot.cli._exits import Exit
from aliquot.cli._parser import TAKES_ANYTHING
from aliquot.common.errors import ConfigError

if TYPE_CHECKING:
    from aliquot.cli._out import Out

ENTRY_POINTS = "aliquot.commands"
"""Group of the entry points; each names an object that is a `Command`, or of ours an `Entry`."""


class Command(Protocol):
    """A subcommand of `aliquot`."""

    @property
    def name(self) -> str:
        """The name that is typed."""

    @property
    def help(self) -> str:
        """One line for the list of commands."""

    @property
    def configure(self) -> Callable[[argparse.ArgumentParser], None]:
        """Adds the command's options to those of `_options.common`."""

    @property
    def run(self) -> Callable[[argparse.Namespace], int]:
        """Runs the command and returns the exit code. It may raise an `AliquotError`, which is shown to the user."""


@dataclass(frozen=True, slots=True)
class Brought:
    """A command of another root of ours."""

    name: str
    help: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


@dataclass(frozen=True, slots=True)
class Work:
    """What a command of ours takes, and what it does."""

    configure: Callable[[argparse.ArgumentParser], None]
    act: Callable[[argparse.Namespace, Out], int | None]
    """Returns the exit code; None: all went well."""


@dataclass(frozen=True, slots=True)
class Builtin:
    """A command of ours. What it does is imported when it is asked for: help and other commands need none of it."""

    name: str
    help: str
    place: str = ""
    """Of its `Work`: a module below `aliquot.cli`; there it is the command in capitals, or what is behind a colon."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """See `Command`."""
        self._work().configure(parser)

    def run(self, args: argparse.Namespace) -> int:
        """See `Command`."""
        from aliquot.cli._out import Out  # noqa: PLC0415 - drawing on terminals takes long to import

        return int(self._work().act(args, Out.of(args)) or Exit.OK)

    def _work(self) -> Work:
        module, _, name = self.place.partition(":")
        name = name or self.name.upper().replace("-", "_")
        work: Work = getattr(importlib.import_module(f"aliquot.cli.{module}"), name)
        return work


def no_options(parser: argparse.ArgumentParser) -> None:
    """Configures a command that has no options of its own."""


@dataclass(frozen=True, slots=True)
class NotInstalled:
    """A stand-in for a command whose extra is not installed: it takes any arguments and says what is missing."""

    name: str
    extras: Sequence[str]
    why: Exception | str

    @property
    def wanted(self) -> str:
        """What would bring it."""
        return f"aliquot[{','.join(self.extras)}]"

    @property
    def help(self) -> str:
        """See `Command`."""
        return f"(needs {self.wanted})"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """See `Command`."""
        parser.add_argument("rest", nargs="*", help=argparse.SUPPRESS)
        parser.set_defaults(**{TAKES_ANYTHING: True})

    def run(self, args: argparse.Namespace) -> NoReturn:
        """See `Command`."""
        del args
        hint = f"pip install '{self.wanted}'"
        raise ConfigError(f"`aliquot {self.name}` needs {self.wanted}: {self.why}", hint=hint)
