"""The administrator's command that brings a node or takes one away: what it is told, and how its answer is read.

It gets the order as JSON on its standard input, and its parts as words of the command (`{node}`, `{shape}`, `{order}`,
`{way}`, `{pool}`, `{reference}`). It answers by its exit status, and may say more as JSON on its standard output:
`{"reference": "i-0abc", "node": "ip-10-0-0-7", "due_s": 900}`, or `{"error": "no stock", "final": true}`. An order may
be carried out twice, after a crash or a time-out: its id is what makes it one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aliquot.client.supply import NodeOrder, NodeShape, OrderWay
from aliquot.common.errors import ConfigError
from aliquot.common.text import one_line

ANSWER_BYTES_MAX = 64 * 1024
PROBLEM_CHARS_MAX = 240
STOP_S = 5.0
_WORDS = ("order", "way", "node", "shape", "pool", "reference")


@dataclass(frozen=True, slots=True)
class Answer:
    """What the command said."""

    accepted: bool
    reference: str = ""
    node_name: str = ""
    due_s: int = 0
    problem: str = ""
    final: bool = False


def parse_command(text: str) -> tuple[str, ...]:
    """The words of a command, with `{node}` and the like in them. Raises `ConfigError`."""
    try:
        words = tuple(shlex.split(text))
        for word in words:
            word.format(**dict.fromkeys(_WORDS, ""))
    except (ValueError, KeyError, IndexError) as error:
        raise ConfigError(f"{text!r} is no command: {error}", hint=f"known: {{{'}, {'.join(_WORDS)}}}") from error
    if not words:
        raise ConfigError("the command is empty")
    return words


def message_of(order: NodeOrder, shape: NodeShape | None, invite: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the command reads."""
    message: dict[str, Any] = {
        "order": order.order_id,
        "way": order.way.lower(),
        "node": order.node_name,
        "shape": order.shape,
        "pool": order.pool,
        "why": order.why,
        "due_ms": order.due_ms,
        "tries": order.tries,
        "reference": order.reference,
    }
    if shape is not None and order.way is OrderWay.ADD:
        message |= {"model": shape.model, "devices": shape.devices, "labels": dict(shape.labels)}
    if invite is not None:
        message["join"] = dict(invite)
    return message


def run(command: Sequence[str], message: Mapping[str, Any], timeout_s: float) -> Answer:
    """Run it to its end. One that hangs is ended with all that it has started, and has failed."""
    values = {word: str(message[word]) for word in _WORDS}
    words = [word.format(**values) for word in command]
    try:
        process = subprocess.Popen(  # noqa: S603 - the administrator's own command
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return Answer(accepted=False, problem=f"{words[0]}: {error.strerror}")
    try:
        out, complaint = process.communicate(json.dumps(message).encode(), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _end(process)
        return Answer(accepted=False, problem=f"{words[0]} has not answered in {timeout_s:g} s")
    return _read(words[0], process.returncode, out[:ANSWER_BYTES_MAX], complaint[:ANSWER_BYTES_MAX])


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=STOP_S)
            return


def _read(name: str, status: int, out: bytes, complaint: bytes) -> Answer:
    said: Any = {}
    text = out.decode(errors="replace").strip()
    if text:
        try:
            said = json.loads(text)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            if status == 0:
                return Answer(accepted=False, problem=f"{name}: its answer is no JSON object: {one_line(text, 80)}")
            said = {}
    if status != 0 or said.get("error"):
        last = one_line(complaint.decode(errors="replace").strip().rpartition("\n")[2], PROBLEM_CHARS_MAX)
        problem = str(said.get("error") or last or f"{name} ended with status {status}")
        return Answer(accepted=False, problem=problem[:PROBLEM_CHARS_MAX], final=bool(said.get("final")))
    due_s = said.get("due_s", 0)
    return Answer(
        accepted=True,
        reference=str(said.get("reference", ""))[:PROBLEM_CHARS_MAX],
        node_name=str(said.get("node", "")),
        due_s=int(due_s) if isinstance(due_s, int | float) and 0 <= due_s < 1e9 else 0,
    )
