"""The program itself: help, version, and commands that other distributions bring."""

from __future__ import annotations

import argparse
import sys
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest

from aliquot.cli._command import ENTRY_POINTS
from aliquot.cli._exits import MEANING, Exit, exit_of
from aliquot.cli.commands import BUILTINS
from aliquot.cli.main import main
from aliquot.client import PoolError
from aliquot.client import _errors as errors
from aliquot.common.errors import AliquotError


class Extra:
    """A command as another distribution would bring it."""

    name = "extra"
    help = "something more"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("word")

    def run(self, args: argparse.Namespace) -> int:
        sys.stdout.write(f"{args.word} {args.json}\n")
        return 9


@pytest.fixture
def extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise ImportError("no module named gone")

    found = [SimpleNamespace(name="extra", load=Extra), SimpleNamespace(name="broken", load=broken)]
    monkeypatch.setattr(metadata, "entry_points", lambda group: found if group == ENTRY_POINTS else [])


def test_commands_of_other_distributions(extra: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["extra", "hello", "--json"]) == 9
    captured = capsys.readouterr()
    assert captured.out == "hello True\n"
    assert "'broken' can't be loaded" in captured.err


def test_help_lists_every_command_and_exit_code(extra: None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    told = capsys.readouterr().out
    assert "extra" in told
    for command in BUILTINS:
        assert f"\n    {command.name}" in told
    for code in MEANING:
        assert f"{code.value:>3}  " in told


@pytest.mark.parametrize("command", [command.name for command in BUILTINS])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert "--coordinator" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["ls", "--nonsense"]])
def test_wrong_command_lines(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == Exit.USAGE
    assert "usage" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.startswith("aliquot ")


def test_every_branch_of_the_error_tree_has_an_exit_code() -> None:
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, PoolError) and kind not in {PoolError, errors.InternalError}:
            assert exit_of(kind("said")) is not Exit.FAILED, kind
    assert exit_of(AliquotError("said")) is Exit.FAILED
