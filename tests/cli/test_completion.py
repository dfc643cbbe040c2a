"""Completion of words, as bash itself does it by our script, and what it asks."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aliquot.cli.main import main


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["r"], ["release", "run"]),
        (["node", ""], ["disenrol", "invite", "settle"]),
        (["node", "inv"], ["invite"]),
        (["access", "token", "--tt"], ["--ttl"]),
        (["ls", "--state"], ["--state"]),
        (["there-is-no-such-command", "x"], []),
    ],
)
def test_how_words_may_go_on(words: list[str], expected: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["__complete", *words]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [word for word in said if expected and word.startswith("-") == expected[0].startswith("-")] == expected


def test_bash_completes_by_the_script(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    program = tmp_path / "aliquot"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m aliquot.cli "$@"\n')
    program.chmod(0o755)
    script = subprocess.run([program, "completion", "bash"], capture_output=True, text=True, check=True).stdout
    asked = f'''{script}
COMP_WORDS=(aliquot node dis) COMP_CWORD=2
_aliquot
echo "${{COMPREPLY[@]}}"'''
    done = subprocess.run(
        [bash, "-c", asked], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "disenrol"
