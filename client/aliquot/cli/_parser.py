"""Parses the command line, and the options of every command.

Usage errors are raised like any other error, so they are short, and JSON if asked for.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from aliquot.common.duration import parse_duration_ms
from aliquot.common.errors import AliquotError
from aliquot.common.text import nearest

T = TypeVar("T")
CALL_TIMEOUT_S = 10.0
_UNSET = argparse.SUPPRESS

_NO_SUCH_COMMAND = re.compile(r"argument [A-Z]+: invalid choice: '(?P<word>[^']*)'")
_HINT = "\n  hint: "
OTHER_WORDS = {
    "ps": "ls",
    "list": "ls",
    "squeue": "ls",
    "jobs": "ls",
    "cancel": "release",
    "stop": "release",
    "kill": "release",
    "delete": "release",
    "rm": "release",
    "free": "release",
    "scancel": "release",
    "describe": "get",
    "show": "get",
    "inspect": "get",
    "submit": "run",
    "start": "run",
    "srun": "run",
    "sbatch": "run",
    "allocate": "alloc",
    "salloc": "alloc",
    "info": "status",
    "explain": "why",
    "smi": "top",
    "sinfo": "nodes",
}
"""What other systems call it: too far from our word for a guess by spelling."""
COMPLETE = "__complete"
"""In place of a command: how may the last of the words that follow go on?"""
TAKES_ANYTHING = "takes_anything"
"""Set as a default of a command that runs whatever other arguments it gets."""


class UsageError(AliquotError):
    """The arguments are wrong."""


class Parser(argparse.ArgumentParser):
    """Raises `UsageError` where argparse would print the whole usage and exit. `--help` still prints and exits."""

    def error(self, message: str) -> NoReturn:
        """Raise `UsageError` with a hint."""
        unknown = _NO_SUCH_COMMAND.match(message)
        if unknown is not None:
            raise UsageError(
                f"there is no `{self.prog} {unknown['word']}`",
                hint=_meant(unknown["word"], self.known(), f"`{self.prog} --help` lists what there is"),
            )
        message, _, hint = message.partition(_HINT)  # from the argument's parser
        raise UsageError(message, hint=hint or f"see `{self.prog} --help`")

    def parse_whole(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Like `parse_args`, but errors about unknown arguments name the command that got them."""
        args, unknown = self.parse_known_args(arguments)
        if unknown and not getattr(args, TAKES_ANYTHING, False):
            command, word = self.chosen(args), unknown[0].partition("=")[0]
            meant = _meant(word, command.known(), f"`{command.prog} --help` lists what it takes")
            if word == "--gpu" and command.takes_request():  # as `aliquot run` has it
                meant = f"here it stands by itself: `{command.prog} 0.25,8Gi`"
            raise UsageError(f"`{command.prog}` takes no {unknown[0]!r}", hint=meant)
        return args

    def chosen(self, args: argparse.Namespace) -> Parser:
        """The parser of the command that was named."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - the only way to ask
                chosen = action.choices.get(getattr(args, action.dest, None) or "")
                if isinstance(chosen, Parser):
                    return chosen.chosen(args)
        return self

    def known(self) -> list[str]:
        """The commands below this one and its long options."""
        found: list[str] = []
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - the only way to ask
                found += action.choices
            found += [word for word in action.option_strings if word.startswith("--")]
        return found

    def takes_request(self) -> bool:
        """Whether an argument of it says what is wanted of GPUs."""
        return any(str(action.metavar).endswith("GPU") for action in self._get_positional_actions())

    def completions(self, words: Sequence[str]) -> list[str]:
        """How the last of these words may go on, after those before it."""
        at = self
        for word in words[:-1]:
            action = next((each for each in at._actions if isinstance(each, argparse._SubParsersAction)), None)  # noqa: SLF001 - the only way to ask
            found = action.choices.get(word) if action is not None else None
            at = found if isinstance(found, Parser) else at
        return sorted({word for word in at.known() if word.startswith("".join(words[-1:]))})


def _meant(word: str, known: Iterable[str], otherwise: str) -> str:
    bare = {name.lstrip("-"): name for name in known}
    if word in OTHER_WORDS and OTHER_WORDS[word] in bare:
        return f"here it is `{OTHER_WORDS[word]}`; {otherwise}"
    close = nearest(word.lstrip("-"), bare)
    return f"did you mean {bare[close[0]]}? {otherwise}" if close else otherwise


def common(parser: argparse.ArgumentParser, *, top: bool = False) -> None:
    """Options of every command, before or after its name."""
    group = parser.add_argument_group("common options")
    group.add_argument(
        "--coordinator",
        "-c",
        metavar="ADDRESS",
        default=None if top else _UNSET,
        help="host:port of the coordinator, several separated by commas "
        "(ALIQUOT_COORDINATOR, else the configuration file, else localhost:7070)",
    )
    group.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        default=None if top else _UNSET,
        help="a file with the token to show (ALIQUOT_TOKEN_FILE, ALIQUOT_TOKEN, else what `aliquot login` has kept)",
    )
    group.add_argument(
        "--json", action="store_true", default=False if top else _UNSET, help="JSON on stdout, errors as JSON on stderr"
    )
    group.add_argument(
        "--timeout",
        type=seconds,
        metavar="TIME",
        default=CALL_TIMEOUT_S if top else _UNSET,
        help="how long a call may take, retries included (default 10s)",
    )
    group.add_argument(
        "--verbose", "-v", action="store_true", default=False if top else _UNSET, help="say what is retried and why"
    )


def argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """A parser of ours as argparse wants one: what it raises is a usage error with its hint."""

    def checked(text: str) -> T:
        try:
            return parse(text)
        except AliquotError as error:
            raise argparse.ArgumentTypeError(error.explain()) from error

    return checked


@argument
def seconds(text: str) -> float:
    """Parses `10s`, `500ms`, `2h`; a bare number is seconds."""
    return float(text) if text.replace(".", "", 1).isdigit() else parse_duration_ms(text) / 1000
