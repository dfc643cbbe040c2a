"""The protocol as readable traces: scripts go in, and every message and durable fact that follows is compared.

After a wanted change, `pytest tests/golden --rewrite` writes what is said now into the traces; their diff is then
reviewed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.told import ToldStage

TRACES = sorted(Path(__file__).with_name("traces").glob("*.txt"))


def replayed(script: str) -> str:
    """The script with what is said now below each command: lines indented by four spaces were said."""
    stage = ToldStage()
    lines: list[str] = []
    with stage.playing():
        for line in script.splitlines():
            if line.startswith("    "):
                continue
            lines.append(line)
            if line.startswith("> "):
                lines += [f"    {said}" for said in stage.told(line.removeprefix("> "))]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_the_protocol_is_as_it_is_written_down(path: Path, request: pytest.FixtureRequest) -> None:
    known = path.read_text("utf-8")
    said = replayed(known)
    if request.config.getoption("--rewrite"):
        path.write_text(said, "utf-8")
    assert said == known or request.config.getoption("--rewrite"), "see the diff; if it is wanted, use --rewrite"


def test_a_word_that_is_not_said_any_more_is_noticed() -> None:
    known = TRACES[0].read_text("utf-8")
    assert replayed(known.replace("welcome", "welcome back")) != known.replace("welcome", "welcome back")


def test_an_unknown_command_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing is known of 'dance'"):
        replayed("> dance\n")
