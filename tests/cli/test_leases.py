"""alloc, ls, get, why and release: what they print, and what they end with."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from aliquot.cli._exits import Exit
from aliquot.cli._views import nodes_table, slices_table
from aliquot.cli.localpool import LocalPool
from aliquot.client import MemberPlace, PlacementRefused, Pool, Slice, SliceState, Tier, WaitUntil
from aliquot.client._from_proto import node_of
from aliquot.v1 import types_pb2
from tests.cli.conftest import Cli


def test_the_life_of_a_lease(cli: Cli) -> None:
    made = cli("alloc", "0.25(A100),4Gi", "--tenant", "vision", "--name", "train", "--label", "team=x", "--json")
    assert made.code == Exit.OK
    lease = made.document
    assert (lease["state"], lease["gpu"], lease["tenant"]) == ("ACTIVE", "0.25(A100),4Gi", "vision")
    assert (lease["labels"], lease["detached"]) == ({"team": "x"}, True)
    assert "secret" not in lease
    (part,) = lease["slices"]
    assert (part["share_milli"], part["memory_bytes"], part["tier"]) == (250, 4 << 30, "WATCHDOG")

    assert [item["lease_id"] for item in cli("ls", "--json").document["leases"]] == [lease["lease_id"]]
    assert cli("ls", "--tenant", "speech", "--json").document == {"leases": []}
    assert cli("ls", "--node", part["node_name"], "--json").document["leases"]
    assert cli("get", lease["lease_id"], "--json").document["name"] == "train"

    gone = cli("release", lease["lease_id"], "--wait", "--json")
    assert gone.document["leases"][0]["end_reason"] == "RELEASED"
    assert cli("ls", "--json").document == {"leases": []}
    assert lease["lease_id"] in {item["lease_id"] for item in cli("ls", "--all", "--json").document["leases"]}


def test_tables_for_people(cli: Cli) -> None:
    made = cli("alloc", "0.25,4Gi", "--tenant", "vision", "--name", "train")
    assert "active" in made.out
    assert "watchdog" in made.out
    assert "\x1b" not in made.out
    listed = cli("ls").out
    assert all(word in listed for word in ("LEASE", "vision", "0.25 · 4Gi", "train"))
    lease_id = made.out.split()[0]
    assert lease_id in cli("get", lease_id).out
    assert "released" in cli("release", lease_id).out
    assert "no leases" in cli("ls", "--state", "queued").err


def test_a_request_that_waits(cli: Cli) -> None:
    first = cli("alloc", "2x1", "--gang", "2", "--json").document
    waits = cli("alloc", "0.5", "--wait", "0.2", "--json")
    assert waits.code == Exit.NOT_NOW
    assert (waits.document["state"], waits.document["waiting"]["queue_position"]) == ("QUEUED", 1)
    why = cli("why", waits.document["lease_id"], "--json")
    assert why.code == Exit.NOT_NOW
    assert why.document["explanation"]["missing"]
    told = cli("why", waits.document["lease_id"]).out
    assert "does not fit now" in told
    assert "number 1 of 1" in told
    refused = cli("alloc", "0.5", "--no-queue", "--json")
    assert (refused.code, refused.error["reason"]) == (Exit.NOT_NOW, "NO_CAPACITY")
    cli("release", first["lease_id"], "--wait")
    assert cli("why", waits.document["lease_id"], "--json").code == Exit.OK


def test_what_would_become_of_a_request(cli: Cli) -> None:
    fits = cli("why", "0.5(A100)", "--json")
    assert fits.code == Exit.OK
    assert fits.document["explanation"]["placement"]
    assert "fits now" in cli("why", "0.5(A100)").out
    never = cli("why", "1(H200)", "--json")
    assert never.code == Exit.REFUSED
    assert never.document["explanation"]["impossible"]
    assert "can never fit" in cli("why", "1(H200)").out


def test_the_same_key_is_the_same_lease_and_another_body_is_a_conflict(cli: Cli) -> None:
    made = [cli("alloc", "0.1", "--key", "job-7", "--json").document["lease_id"] for _ in range(2)]
    assert made[0] == made[1]
    other = cli("alloc", "0.2", "--key", "job-7", "--json")
    assert (other.code, other.error["reason"]) == (Exit.CONFLICT, "IDEMPOTENCY_MISMATCH")


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["get", "l-0000000000000"], Exit.NOT_FOUND, "LEASE_NOT_FOUND"),
        (["release", "l-0000000000000"], Exit.NOT_FOUND, "LEASE_NOT_FOUND"),
        (["alloc", "1.5"], Exit.USAGE, "REQUEST_SYNTAX"),
        (["alloc", "1(H200)"], Exit.REFUSED, "NEVER_FITS"),
        (["alloc", "0.5", "--tenant", "no blanks"], Exit.USAGE, "INVALID_FIELD"),
        (["alloc", "0.5", "--node", "nowhere"], Exit.NOT_FOUND, "NODE_NOT_FOUND"),
        (["nodes", "nowhere"], Exit.NOT_FOUND, "NODE_NOT_FOUND"),
        (["ls", "--coordinator", "127.0.0.1:1", "--timeout", "0.2s"], Exit.UNAVAILABLE, "UNAVAILABLE"),
        (["ls", "--coordinator", "host:port"], Exit.USAGE, "INVALID_CONFIG"),
        (
            ["access", "token", "ann", "--role", "user", "--tenant", "t", "--file", "/dev/null/token"],
            Exit.USAGE,
            "INVALID_CONFIG",
        ),
        (["support-bundle", "--out", "/dev/null/bundle"], Exit.FAILED, "SYSTEM_REFUSAL"),
    ],
)
def test_errors_have_codes_for_scripts_and_hints_for_people(
    cli: Cli, arguments: list[str], code: Exit, reason: str
) -> None:
    as_json = cli(*arguments, "--json")
    assert (as_json.code, as_json.error["reason"], as_json.error["exit_code"]) == (code, reason, code)
    assert as_json.out == "", "one document, or none"
    plain = cli(*arguments)
    assert plain.code == code
    assert plain.err.startswith("error: ")
    assert as_json.error["message"].split()[0] in plain.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["up", "--state-dir", "{file}"], "File exists"),
        (["up", "--state-dir", "/dev/null"], "File exists"),
        (["demo", "--state-dir", "{file}/below"], "File exists"),
        (["support-bundle", "--out", "{folder}"], "File exists"),
        (["support-bundle", "--out", "{file}/bundle"], "Not a directory"),
        (["doctor", "--directory", "{folder}/none"], "No such file or directory"),
        (["apply", "--file", "{folder}"], "Is a directory"),
        (["login", "--ca-file", "{folder}"], "Is a directory"),
    ],
)
def test_a_place_that_wont_do_is_said_with_what_to_name_instead(
    cli: Cli, tmp_path: Path, arguments: list[str], said: str
) -> None:
    (tmp_path / "a-file").touch()
    (tmp_path / "a-folder").mkdir()
    words = [each.format(file=tmp_path / "a-file", folder=tmp_path / "a-folder") for each in arguments]
    result = cli(*words, "--json")
    assert said in result.error["message"]
    assert "name " in result.error["hint"]
    assert result.error["exit_code"] == result.code


def test_a_token_that_is_written_to_a_file_is_nowhere_else(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "token"
    made = cli("access", "token", "ann", "--role", "user", "--tenant", "t", "--file", str(file), "--json")
    assert made.document["file"] == str(file)
    assert file.read_text().strip() not in made.out + made.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["alloc"],
        ["alloc", "1", "--memory", "8GB"],
        ["ls", "--state", "sleeping"],
        ["alloc", "1", "--min-tier", "magic"],
        ["correct", "t", "--model", "L4", "--gpu-hours=-1", "--reference", "r"],
        ["correct", "t", "--queue", "q", "--gpu-hours=-1", "--reference", "r"],
    ],
)
def test_wrong_arguments_are_usage_errors(cli: Cli, arguments: list[str]) -> None:
    assert cli(*arguments).code == Exit.USAGE


def test_some_of_several_releases_may_fail(cli: Cli) -> None:
    lease_id = cli("alloc", "0.1", "--json").document["lease_id"]
    result = cli("release", lease_id, "l-0000000000000", "--json")
    assert result.code == Exit.NOT_FOUND
    assert [lease["lease_id"] for lease in result.document["leases"]] == [lease_id]


def test_why_no_stronger_tier_holds_a_lease(cli: Cli) -> None:
    lease_id = cli("alloc", "0.5,10Gi", "--tenant", "vision", "--json").document["lease_id"]
    (part,) = cli("get", lease_id, "--json").document["slices"]
    *tiers, share = part["tier_notes"]
    assert [note.partition(":")[0] for note in tiers] == ["mig", "driver", "mps", "preload"]
    assert share.startswith("a share of 0.5 is a guarantee")
    shown = cli("why", lease_id).out
    assert f"held by {part['tier'].lower()}, by no stronger tier because mig: not among this agent" in " ".join(
        shown.split()
    )
    assert "no stronger tier: mps: not among" in cli("get", lease_id).out
    whole = cli("alloc", "1", "--tenant", "vision", "--json").document["lease_id"]
    assert "stronger" not in cli("why", whole).out + cli("get", whole).out


def test_somebody_who_decides_where_himself(cli: Cli) -> None:
    one, two = (node["name"] for node in cli("nodes", "--json").document["nodes"])
    asked = cli("fits", "0.75(A100),4Gi", "--node", two, "--node", one, "--json")
    assert asked.code == Exit.OK
    assert [(fit["node_id"], fit["reason"]) for fit in asked.document["nodes"]] == [(two, "FITS"), (one, "FITS")]
    lease = cli("alloc", "0.75(A100),4Gi", "--on", two, "--json").document
    (part,) = lease["slices"]
    assert part["node_name"] == two
    again = cli("alloc", "0.75(A100),4Gi", "--on", f"{two}:{part['device_uuid']}", "--json")
    assert (again.code, again.error["reason"]) == (Exit.NOT_NOW, "PLACEMENT_REFUSED")
    assert again.error["obstacle"] == "SHARE_HELD"
    told = cli("fits", "3", "--node", two)
    assert told.code == Exit.NOT_NOW
    assert "TOO_FEW_DEVICES_ON_NODE" in told.out
    nobody = cli("fits", "0.5", "--serve", "remote", "--json")
    assert {fit["reason"] for fit in nobody.document["nodes"]} == {"SERVE"}
    cli("release", lease["lease_id"], "--wait")


def test_holding_somewhere_waits_as_holding_anywhere_does(cli: Cli, local: LocalPool, tmp_path: Path) -> None:
    """On a node without an agent no lease becomes active, so the wait always ends."""
    file = tmp_path / "nodes.yaml"
    file.write_text("nodes: [{name: paper, devices: [{model: L4}]}]")
    cli("declare", "-f", str(file), "--agentless")
    for where in (["--on", "paper"], ["--node", "paper"]):
        ended = cli("alloc", "0.5", *where, "--hold", "--wait", "0.2s", "--json")
        assert (ended.code, ended.error["reason"]) == (Exit.NOT_NOW, "NOT_GRANTED_IN_TIME")
        assert cli("ls", "--json").document == {"leases": []}, "it was withdrawn"
    with Pool(local.address, token_file=local.token_file, agent_sockets=[]) as pool:
        with pool.lease("0.5", places="paper", until=WaitUntil.GRANTED) as held:
            assert [part.node_name for part in held.slices] == ["paper"]
            with pytest.raises(PlacementRefused):
                pool.lease("0.75", places=[MemberPlace("paper")])
        pool.remove_node(pool.node("paper").node_id)


def test_where_a_lease_is_served_is_shown() -> None:
    piece = Slice(
        "l.1.0", "n", "n", "GPU-1", "L4", 500, 1 << 30, SliceState.ACTIVE, Tier.WATCHDOG, 0, 0, 0, "",
        endpoint="10.0.0.7:7099",
    )  # fmt: skip
    console = Console(width=160, file=io.StringIO())
    console.print(slices_table([piece]))
    console.print(nodes_table([node_of(types_pb2.Node(name="n", serves=[types_pb2.SERVE_REMOTE]))]))
    assert "served at 10.0.0.7:7099" in (shown := console.file.getvalue())  # type: ignore[attr-defined]
    assert "remote" in shown
