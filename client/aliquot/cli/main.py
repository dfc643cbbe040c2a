"""The program `aliquot`: finds the command, runs it, and turns errors into messages and exit codes."""

from __future__ import annotations

import argparse
import errno
import io
import logging
import os
import sys
from collections.abc import Sequence

# Set before grpc is imported: it would print every lost connection to stderr, which the commands report themselves.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

from aliquot.cli import _exits as exits
from aliquot.cli._command import ENTRY_POINTS, Brought, Command, NotInstalled
from aliquot.cli._exits import Exit
from aliquot.cli._parser import COMPLETE, Parser, UsageError, common
from aliquot.cli.commands import ALL, BUILTINS, BY_ENTRY_POINT, GROUPS
from aliquot.common.errors import AliquotError

DESCRIPTION = (
    "Exact parts of GPUs from one pool: ask for `0.25(A100),10Gi`, and get it placed, enforced and accounted for."
)
EPILOG = f"""exit codes:
{exits.describe()}
  run and exec end with the program's own code (128 + the signal's number when a signal ended it).

first steps:
  aliquot up                               a pool of simulated GPUs on this machine (Ctrl-C stops it)
  aliquot run --gpu 0.25,8Gi -- python -m aliquot.simgpu.burn --bytes 4Gi
  aliquot top                              watch it
"""

_OS_HINTS = {
    errno.ENOSPC: "the disk is full: make room where this is written, or name another place (--state-dir)",
    errno.EDQUOT: "the disk quota is used up: make room, or name another folder (--state-dir; XDG_STATE_HOME)",
    errno.EROFS: "that place is read-only: name another folder (--state-dir; XDG_STATE_HOME, XDG_CONFIG_HOME)",
    errno.EACCES: "this user may not do that there: name another place (--state-dir; XDG_STATE_HOME, XDG_CONFIG_HOME)",
    errno.EEXIST: "something else has that name: name another place",
    errno.ENOTDIR: "a file is there, where a folder is needed: name another place",
    errno.EISDIR: "that is a folder: name a file in it",
    errno.ENOENT: "make its folder first, or name another place",
    errno.EMFILE: "this shell allows too few open files: `ulimit -n 4096`",
}


class SystemRefusal(AliquotError):
    """The operating system does not do what a command needs."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _write_anything()
    if arguments[:1] == [COMPLETE]:
        sys.stdout.writelines(f"{word}\n" for word in _completions(arguments[1:]))
        return int(Exit.OK)
    try:
        args = build_parser(commands(arguments), arguments).parse_whole(arguments)
    except UsageError as error:
        ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
        return _failed(error, as_json="--json" in ours)
    if args.verbose:
        logging.basicConfig(level=logging.DEBUG, format="%(name)s: %(message)s", stream=sys.stderr)
    try:
        return int(args.run(args))
    except AliquotError as error:
        return _failed(error, as_json=args.json)
    except BrokenPipeError:
        # The reader (head, less) closed the pipe; the interpreter must not complain about that at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(Exit.OK)
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        told = SystemRefusal(f"{where}{error.strerror or error}", hint=_OS_HINTS.get(error.errno or 0, ""))
        return _failed(told, as_json=args.json)
    except UnicodeEncodeError as error:
        # What was typed, or stands in a variable, is in another encoding than this terminal says.
        said = f"{error.object!r} can't be read as UTF-8"
        return _failed(UsageError(said, hint="write it in UTF-8, or with plain letters"), as_json=args.json)
    except KeyboardInterrupt:
        if not args.json:
            sys.stderr.write("interrupted\n")
        return int(Exit.INTERRUPTED)


def _failed(error: AliquotError, *, as_json: bool) -> int:
    """Show an error; returns its exit code."""
    from aliquot.cli._out import Out  # noqa: PLC0415 - drawing on terminals takes long to import

    Out(as_json=as_json).error(error)
    return int(exits.exit_of(error))


def build_parser(commands: Sequence[Command], arguments: Sequence[str] | None = None) -> Parser:
    """The whole command line; where the arguments are known, with options of those commands only that they name."""
    parser = Parser(
        prog="aliquot",
        usage="aliquot [options] COMMAND …",
        description=f"{DESCRIPTION}\n{_listed(commands)}",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show program's version number and exit")
    common(parser, top=True)
    subparsers = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, prog="aliquot", help=argparse.SUPPRESS
    )
    for command in commands:
        sub = subparsers.add_parser(
            command.name,
            description=command.help[:1].upper() + command.help[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if arguments is None or command.name in arguments:
            command.configure(sub)
            common(sub)
            sub.set_defaults(run=command.run)
    return parser


def _listed(commands: Sequence[Command]) -> str:
    """What there is, by what it is for; what other distributions bring comes last."""
    there = {command.name: command for command in commands}
    known = {command.name for command in ALL}
    groups = {title: [each.name for each in group] for title, group in GROUPS.items()}
    groups["brought by others"] = [name for name in there if name not in known]
    lines: list[str] = []
    for title, names in groups.items():
        shown = [f"  {name:<15} {there[name].help}" for name in names if name in there]
        lines += ["", f"{title}:", *shown] if shown else []
    return "\n".join(lines)


def _completions(words: Sequence[str]) -> list[str]:
    """Of the command that is named, its own; what can't be read has none."""
    try:
        return build_parser(commands(words[:1] or ["--help"]), words[:1]).completions(words)
    except (AliquotError, OSError):
        return []


def commands(arguments: Sequence[str]) -> list[Command]:
    """The built-in commands, and of those of other distributions the one that is meant; for help, all of them.

    Importing takes time, and so does asking what is installed.
    """
    ours: dict[str, Command] = {command.name: command for command in BUILTINS}
    known = {command.name: command for command in BY_ENTRY_POINT}
    words = [argument for argument in arguments if not argument.startswith("-")]
    if words and words[0] in ours and not {"-h", "--help"} & set(arguments[:1]):
        return list(ours.values())
    from importlib import metadata  # noqa: PLC0415 - of our own commands nobody needs to ask what is installed

    from aliquot.common import programs  # noqa: PLC0415 - see above

    entries = metadata.entry_points(group=ENTRY_POINTS)
    others = {entry.name for entry in entries}
    # The first word that is a command: a word of another's may be the name of one of ours, too (`autoscale status`).
    meant = next((word for word in words if word in ours or word in others), "")
    if {"-h", "--help"} & set(arguments[:1]):
        meant = ""
    for entry in entries:
        if (meant and entry.name != meant) or entry.name in ours:
            continue
        lacking = [name for extra in entry.extras for name in programs.missing(extra)]
        if lacking:
            # Asked before it is loaded: what a command needs is often imported only when it runs.
            missing = f"{', '.join(lacking)} is not installed"
            ours.setdefault(entry.name, NotInstalled(entry.name, entry.extras, missing))
            continue
        if not meant and entry.name in known:
            ours[entry.name] = known[entry.name]
            continue
        try:
            loaded = entry.load()
        except Exception as error:  # noqa: BLE001 - code of others; the rest must still work
            if entry.extras and isinstance(error, (ImportError, AttributeError)):
                ours.setdefault(entry.name, NotInstalled(entry.name, entry.extras, error))
                continue
            sys.stderr.write(f"aliquot: the command {entry.name!r} can't be loaded: {error}\n")
            continue
        about = known.get(entry.name)
        command: Command = Brought(about.name, about.help, loaded.configure, loaded.run) if about else loaded
        ours.setdefault(command.name, command)
    return list(ours.values())


def _write_anything() -> None:
    """Names are other people's words: a terminal that can't show one shows a question mark, and no command fails."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


class _Version(argparse.Action):
    """Asked for seldom, and to ask what is installed takes a tenth of a command's time."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib import metadata  # noqa: PLC0415 - see above

        try:
            version = metadata.version("aliquot")
        except metadata.PackageNotFoundError:
            version = "0"
        sys.stdout.write(f"aliquot {version}\n")
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
