"""Names, reasons and terminals of others: brackets, colons, other letters, other encodings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from aliquot.cli._exits import Exit
from tests.cli.conftest import PROGRAM, Cli

NAMES = ("exp[lr=0.1]", "train [/] eval", "[red]alarm[/red]", ":smile: [link=https://x]y[/link]", "[::1]:7070", "模型")


@pytest.mark.parametrize("name", NAMES)
def test_a_lease_s_name_takes_the_list_from_nobody(cli: Cli, name: str) -> None:
    made = cli("alloc", "0.05,1Gi", "--name", name, "--json").document
    try:
        for command in (["ls"], ["get", made["lease_id"]], ["top", "--once"], ["why", made["lease_id"]]):
            said = cli(*command)
            assert said.code == Exit.OK, said.err
        assert name in cli("ls").out
        assert name in cli("get", made["lease_id"]).out
    finally:
        cli("release", made["lease_id"], "--wait")


def test_a_node_s_reason(cli: Cli) -> None:
    reason = "fan [/] broken [red]"
    assert cli("cordon", "node-1", "--reason", reason).code == Exit.OK
    try:
        assert reason in cli("nodes").out
    finally:
        cli("uncordon", "node-1")


def test_an_error_that_repeats_what_was_typed(cli: Cli) -> None:
    said = cli("get", "l-[/]")
    assert said.code == Exit.NOT_FOUND
    assert "l-[/]" in said.err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_terminals_that_can_t_show_a_name(cli: Cli, env: Mapping[str, str], encoding: str) -> None:
    made = cli("alloc", "0.05,1Gi", "--name", "模型 🚀", "--json").document
    program_env = {**os.environ, **env, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    try:
        for command in (["ls"], ["top", "--once"], ["status"], ["get", made["lease_id"]], ["ls", "--json"]):
            said = subprocess.run([*PROGRAM, *command], env=program_env, capture_output=True, check=False)
            assert (said.returncode, said.stderr) == (0, b""), command
        listed = subprocess.run([*PROGRAM, "ls", "--json"], env=program_env, capture_output=True, check=True)
        assert "模型 🚀" in json.loads(listed.stdout.decode(encoding))["leases"][0]["name"]
    finally:
        cli("release", made["lease_id"], "--wait")


def test_an_argument_in_another_encoding(env: Mapping[str, str]) -> None:
    said = subprocess.run(
        [*PROGRAM, "alloc", "0.05", "--name", b"m\xfcnchen"],
        env={**os.environ, **env},
        capture_output=True,
        check=False,
    )
    assert said.returncode == Exit.USAGE
    assert b"Traceback" not in said.stderr
    assert b"UTF-8" in said.stderr


def test_a_program_gets_its_words_as_they_were_typed(env: Mapping[str, str]) -> None:
    echo = "import os, sys; sys.stdout.buffer.write(os.fsencode(sys.argv[1]))"
    said = subprocess.run(
        [*PROGRAM, "run", "--gpu", "0.05,1Gi", "--", sys.executable, "-c", echo, b"m\xfc\xff"],
        env={**os.environ, **env},
        capture_output=True,
        check=False,
    )
    assert (said.returncode, said.stdout) == (0, b"m\xfc\xff"), said.stderr


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("ps", "`ls`"), ("cancel", "`release`"), ("describe", "`get`"), ("submit", "`run`"), ("squeue", "`ls`")],
)
def test_words_of_other_systems(cli: Cli, typed: str, meant: str) -> None:
    said = cli(typed, "x")
    assert said.code == Exit.USAGE
    assert meant in said.err


def test_an_option_behind_the_program(cli: Cli) -> None:
    said = cli("run", "--", "true", "--gpu", "1")
    assert said.code == Exit.USAGE
    assert "before `--`" in said.err
