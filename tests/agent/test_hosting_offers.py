"""Which services a node offers, whose is taken, and what they are told of their clients."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from aliquot.agent.core.model import SliceSpec
from aliquot.agent.hosting import clients, installed, processes

ABOUT = "Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nProvides-Extra: big-one\n{requires}"


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, entry: str, requires: str = "") -> None:
    """A distribution with an entry point."""
    about = folder / name / f"{name.replace('-', '_')}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(ABOUT.format(name=name, requires=requires))
    (about / "entry_points.txt").write_text(f"[aliquot.hosts]\n{entry}\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder / name)])


def test_a_service_is_offered_once_all_that_its_extra_names_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = 'Requires-Dist: {}>=1; extra == "big-one"\nRequires-Dist: other; extra == "one"\n'
    install(monkeypatch, tmp_path, "whole", "whole = a:B [big-one]", needs.format("msgspec"))
    install(monkeypatch, tmp_path, "lacking", "lacking = a:B [big-one]", needs.format("no-such-thing"))
    install(monkeypatch, tmp_path, "simple", "simple = a:B")
    there = installed.installed()
    assert {"whole", "simple"} <= set(there)
    assert "lacking" not in there
    assert clients.chosen(["simple", "lacking", "unknown"], there) == {"simple"}
    assert clients.chosen(["none"], there) == frozenset()
    assert clients.chosen(["all"], there) == set(there)


def test_a_service_of_others_goes_before_our_own_and_two_of_them_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert installed.find("remote").value.startswith("aliquot.remote.")
    install(monkeypatch, tmp_path, "theirs", "remote = their.own:Service")
    assert installed.find("remote").value == "their.own:Service"
    install(monkeypatch, tmp_path, "more", "remote = another:Service")
    with pytest.raises(LookupError, match="2 entry points"):
        installed.find("remote")
    with pytest.raises(LookupError, match="0 entry points"):
        installed.find("nothing")


def test_what_a_service_is_told() -> None:
    reached = clients.Reached("gpu-a.example.com", "40000-40009")
    assert reached.environment() == {
        "ALIQUOT_SERVING_HOST": "gpu-a.example.com",
        "ALIQUOT_SERVING_PORTS": "40000-40009",
    }
    spec = SliceSpec("s", "l-1", 1, "GPU", 250, 1, tenant="research", grace_ms=7, serving_credential_sha256=b"\x01\xff")
    assert clients.of_lease(spec) == {
        "ALIQUOT_TENANT": "research",
        "ALIQUOT_SERVING_CREDENTIAL_SHA256": "01ff",
        "ALIQUOT_GRACE_MS": "7",
    }


@pytest.mark.parametrize("address", ["127.0.0.1:7070", "unix:/run/pool.sock", "localhost:1", "[::1]:7070"])
def test_beside_its_coordinator_a_node_serves_on_the_loopback_alone(address: str) -> None:
    assert clients.own_address([address]) == "127.0.0.1"


def test_a_coordinator_that_can_not_be_resolved_is_not_the_way() -> None:
    assert clients.own_address(["no-such-host.invalid:7070"]) == "127.0.0.1"


@pytest.mark.root("to try as another user")
def test_what_its_user_can_not_start_is_not_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "python").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(closed / "python"))
    assert "can't run" in processes._try_as(54_321)
    (closed / "anything").symlink_to("/bin/true")  # which starts wherever it is found, and only root finds it here
    monkeypatch.setattr(sys, "executable", str(closed / "anything"))
    assert "can't run" in processes._try_as(54_321)
    monkeypatch.setattr(sys, "executable", "/bin/true")
    assert processes._try_as(54_321) == ""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert "can't run" in processes._try_as(54_321)
