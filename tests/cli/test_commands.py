"""The program itself: help, version, and commands that other distributions bring."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import pytest

from aliquot.cli._command import ENTRY_POINTS
from aliquot.cli._exits import MEANING, Exit, exit_of
from aliquot.cli._out import Out
from aliquot.cli._parser import OTHER_WORDS
from aliquot.cli.commands import BUILTINS, BY_ENTRY_POINT
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

    def missing() -> Any:
        raise ModuleNotFoundError("No module named 'numpy'")

    found = [
        SimpleNamespace(name="extra", load=Extra, extras=[]),
        SimpleNamespace(name="broken", load=broken, extras=[]),
        SimpleNamespace(name="simulate", load=missing, extras=["coordinator"]),
    ]
    monkeypatch.setattr(metadata, "entry_points", lambda group: found if group == ENTRY_POINTS else [])


def test_commands_of_other_distributions(extra: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["extra", "hello", "--json"]) == 9
    captured = capsys.readouterr()
    assert captured.out == "hello True\n"
    assert not captured.err, "what is not meant is not loaded"


def test_a_command_whose_extra_is_not_installed_says_which(extra: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--nodes", "f", "x"]) == Exit.USAGE
    captured = capsys.readouterr()
    assert "needs aliquot[coordinator]: No module named 'numpy'" in captured.err
    assert "pip install 'aliquot[coordinator]'" in captured.err
    assert "'simulate' can't be loaded" not in captured.err


def test_words_of_other_systems_lead_to_commands_that_there_are() -> None:
    ours = {command.name for command in BUILTINS}
    assert set(OTHER_WORDS.values()) <= ours
    assert not set(OTHER_WORDS) & ours


@pytest.mark.parametrize(
    ("state_dir", "says"), [("/proc/no-such-place/pool", "No such file"), ("/dev/null/pool", "File exists")]
)
def test_what_the_system_refuses_is_a_sentence(state_dir: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--detach", "--state-dir", state_dir]) == Exit.FAILED
    said = capsys.readouterr().err
    assert state_dir.rpartition("/")[0] in said
    assert says in said
    assert "Traceback" not in said


def test_help_lists_every_command_and_exit_code(extra: None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    captured = capsys.readouterr()
    told = captured.out
    assert "'broken' can't be loaded" in captured.err
    assert "extra" in told
    for command in BUILTINS:
        assert f"\n  {command.name} " in told
    for code in MEANING:
        assert f"{code.value:>3}  " in told


def test_help_imports_nothing_that_draws_or_calls() -> None:
    listed = """
import contextlib, sys
from aliquot.cli.main import main
with contextlib.suppress(SystemExit):
    main(["--help"])
print(sorted({"grpc", "rich", "aliquot.client", "aliquot.coordinator"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", listed], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_lists_what_our_other_roots_bring_and_nothing_else() -> None:
    entries = metadata.entry_points(group=ENTRY_POINTS)
    assert {each.name for each in entries} == {each.name for each in BY_ENTRY_POINT}
    for entry in entries:
        brought = entry.load()
        assert callable(brought.configure), entry.name
        assert callable(brought.run), entry.name


@pytest.mark.parametrize("command", [command.name for command in BUILTINS])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert "--coordinator" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said", "advice"),
    [
        ([], "required: COMMAND", "`aliquot --help`"),
        (["alocc", "1"], "no `aliquot alocc`", "did you mean alloc?"),
        (["ls", "--nonsense"], "`aliquot ls` takes no '--nonsense'", "`aliquot ls --help`"),
        (["ls", "--tenent=x"], "'--tenent=x'", "did you mean --tenant?"),
        (["alloc"], "required: GPU", "`aliquot alloc --help`"),
        (["alloc", "--gpu", "0.25"], "takes no '--gpu'", "by itself: `aliquot alloc 0.25,8Gi`"),
        (["why", "--gpu", "0.25"], "takes no '--gpu'", "by itself: `aliquot why 0.25,8Gi`"),
        (["ls", "--gpu", "1"], "`aliquot ls` takes no '--gpu'", "`aliquot ls --help`"),
        (["alloc", "1", "--until", "soon"], "'soon' is not a state to wait for; one of", "`aliquot alloc --help`"),
        (["alloc", "1", "--memory", "5GB"], "'5GB' is not a quantity", "write 5G or 5Gi"),
        (["alloc", "1", "--gang", "0"], "'0' is not a whole number from 1", "`aliquot alloc --help`"),
        (["alloc", "1", "--topology", "star"], "prefer-island", "`aliquot alloc --help`"),
    ],
)
def test_wrong_command_lines(arguments: list[str], said: str, advice: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == Exit.USAGE
    told = capsys.readouterr()
    assert (said in told.err, advice in told.err, told.out) == (True, True, ""), told.err
    assert main([*arguments, "--json"]) == Exit.USAGE
    error = json.loads(capsys.readouterr().err)["error"]
    assert (error["reason"], error["exit_code"]) == ("USAGE", Exit.USAGE)
    assert said in error["message"]
    assert advice in error["hint"]


@pytest.mark.parametrize("columns", ["", "wide", "0", "-5", "3", "9" * 12])
def test_a_width_that_is_none_is_not_kept_to(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    Out().show("a sentence that would not fit in three columns")
    assert capsys.readouterr().out == "a sentence that would not fit in three columns\n"


@pytest.mark.parametrize(
    ("period", "said"),
    [
        (["--month", "2026-13"], "--month: '2026-13' is not a month"),
        (["--from", "2026-11-01"], "--from and --to go together"),
        (["--from", "2026-11-01", "--to", "soon"], "--to: 'soon' is not a time"),
    ],
)
def test_periods_that_are_none(period: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["invoice", "research", *period]) == Exit.USAGE
    assert said in capsys.readouterr().err


def test_what_comes_after_two_dashes_is_the_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--nonsense", "--", "program", "--json"]) == Exit.USAGE
    assert capsys.readouterr().err.startswith("error: ")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.startswith("aliquot ")


def test_every_branch_of_the_error_tree_has_an_exit_code() -> None:
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, PoolError) and kind not in {PoolError, errors.InternalError}:
            assert exit_of(kind("said")) is not Exit.FAILED, kind
    assert exit_of(AliquotError("said")) is Exit.FAILED
