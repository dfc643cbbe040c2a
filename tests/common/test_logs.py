"""Logs: one line a record for people or collectors, with facts apart from the sentence."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator

import pytest

from aliquot.common.errors import ConfigError
from aliquot.common.logging import TEXT_CHARS_MAX, configure
from aliquot.common.text import one_line


@pytest.fixture(autouse=True)
def restored_root() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    logging.captureWarnings(capture=False)
    root.handlers[:], root.level = handlers, level


def test_json_lines_hold_the_facts() -> None:
    out = io.StringIO()
    configure("debug", json=True, stream=out)
    logging.getLogger("aliquot.test").info("lease %s granted", "l-1", extra={"lease_id": "l-1", "bytes": 5, "odd": {1}})
    line = json.loads(out.getvalue())
    assert line.pop("ts").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "aliquot.test",
        "message": "lease l-1 granted",
        "lease_id": "l-1",
        "bytes": 5,
        "odd": [1],
    }


def test_a_fact_never_hides_what_the_record_says() -> None:
    out = io.StringIO()
    configure(json=True, stream=out)
    logging.getLogger("x").warning("true", extra={"level": "forged", "obj": object()})
    line = json.loads(out.getvalue())
    assert line["level"] == "warning"
    assert line["extra_level"] == "forged"
    assert "object" in line["obj"]


@pytest.mark.parametrize("as_json", [True, False])
def test_nobody_can_forge_a_line(*, as_json: bool) -> None:
    out = io.StringIO()
    configure(json=as_json, stream=out)
    logging.getLogger("x").info("name: %s", "a\n2026 ERROR forged\x1b[31m", extra={"fact": "b\nc"})
    assert out.getvalue().count("\n") == 1
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize("as_json", [True, False])
def test_nobody_can_fill_the_log_by_one_line(*, as_json: bool) -> None:
    out = io.StringIO()
    configure(json=as_json, stream=out)
    logging.getLogger("x").warning("refused %s", "\n" * 100_000, extra={"problem": "y" * 100_000, "count": 3})
    assert len(out.getvalue()) < 6 * 2 * TEXT_CHARS_MAX
    assert "3" in out.getvalue()
    assert "…" in out.getvalue() or "\\u2026" in out.getvalue()
    assert out.getvalue().count("\n") == 1


@pytest.mark.parametrize(
    ("text", "shown"), [("", ""), ("abcd", "abcd"), ("abcde", "abc…"), ("a\nb", "a\\nb"), ("\x1b[2J", "\\x1…")]
)
def test_text_of_others_is_cut_to_a_line(text: str, shown: str) -> None:
    assert one_line(text, 4) == shown


def test_lines_for_people() -> None:
    out = io.StringIO()
    configure(stream=out)
    logging.getLogger("aliquot.agent").warning("attached", extra={"pid": 4711, "who": "训练"})
    assert out.getvalue()[24:] == " WARNING aliquot.agent: attached pid=4711 who=训练\n"


@pytest.mark.parametrize("as_json", [True, False])
def test_a_traceback_is_kept(*, as_json: bool) -> None:
    out = io.StringIO()
    configure(json=as_json, stream=out)
    try:
        raise ValueError("inner")
    except ValueError:
        logging.getLogger("x").exception("failed")
    if as_json:
        assert "ValueError: inner" in json.loads(out.getvalue())["exception"]
    else:
        assert out.getvalue().rstrip().endswith("ValueError: inner")


def test_the_level_counts_and_configuring_again_replaces() -> None:
    first, second = io.StringIO(), io.StringIO()
    configure("error", stream=first)
    logging.getLogger("x").warning("hidden")
    configure("INFO", stream=second)
    logging.getLogger("x").debug("hidden")
    logging.getLogger("x").info("shown")
    assert first.getvalue() == ""
    assert second.getvalue().count("\n") == 1
    with pytest.raises(ConfigError) as caught:
        configure("loud")
    assert "debug, info, warning" in caught.value.hint


def test_warnings_go_to_the_log() -> None:
    out = io.StringIO()
    configure(stream=out)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        logging.captureWarnings(capture=False)
    assert "DeprecationWarning: old" in out.getvalue()
