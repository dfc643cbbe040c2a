"""The interface of commands, both built in and added by other distributions through entry points."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

from aliquot.cli._exits import Exit
from aliquot.cli._out import Out
from aliquot.cli._parser import TAKES_ANYTHING
from aliquot.common.errors import ConfigError

ENTRY_POINTS = "aliquot.commands"
"""Group of the entry points; each names an object that is a `Command`."""


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
class Builtin:
    """A command that comes with the CLI."""

    name: str
    help: str
    configure: Callable[[argparse.ArgumentParser], None]
    act: Callable[[argparse.Namespace, Out], int | None]
    """Returns the exit code; None: all went well."""

    def run(self, args: argparse.Namespace) -> int:
        """See `Command`."""
        return int(self.act(args, Out.of(args)) or Exit.OK)


def no_options(parser: argparse.ArgumentParser) -> None:
    """Configures a command that has no options of its own."""


def not_installed(name: str, extras: Sequence[str], error: Exception | str) -> Builtin:
    """A stand-in for a command whose extra is not installed: it takes any arguments and says what is missing."""
    wanted = f"aliquot[{','.join(extras)}]"

    def configure(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("rest", nargs="*", help=argparse.SUPPRESS)
        parser.set_defaults(**{TAKES_ANYTHING: True})

    def act(args: argparse.Namespace, out: Out) -> NoReturn:
        del args, out
        raise ConfigError(f"`aliquot {name}` needs {wanted}: {error}", hint=f"pip install '{wanted}'")

    return Builtin(name, f"(needs {wanted})", configure, act)
