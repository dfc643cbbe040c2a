"""Logging in and out, giving and taking roles, as people do it; and a secret is only ever where it must be."""

from __future__ import annotations

import io
import shlex
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aliquot.cli._bootstrapping import _choices
from aliquot.cli._exits import Exit
from aliquot.cli.localpool import Child, LocalPool
from aliquot.cli.localpool.children import clean_environment
from aliquot.cli.main import main
from aliquot.client import NotLoggedIn, NotPermitted, Pool
from aliquot.client.access import IssuedToken, Role, RoleGrant, Token
from aliquot.client.credentials import Credential, CredentialsFile
from aliquot.common.connection_string import ConnectionString, decode
from aliquot.common.tls import is_local_address
from tests.certificates import Authority
from tests.cli.conftest import Result

Run = Callable[..., Result]


class Person:
    """Somebody with a home of their own, who runs commands."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.credentials = CredentialsFile.of({"XDG_CONFIG_HOME": str(home / "config")})
        self.said = ""
        self._home = home
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str, stdin: str = "") -> Result:
        with self._monkeypatch.context() as patched:
            for name in ("ALIQUOT_TOKEN_FILE", "ALIQUOT_COORDINATOR"):
                patched.delenv(name)
            patched.setenv("XDG_CONFIG_HOME", str(self._home / "config"))
            patched.setattr(sys, "stdin", io.StringIO(stdin))
            self._capsys.readouterr()
            code = main(arguments)
        captured = self._capsys.readouterr()
        self.said += captured.out + captured.err
        return Result(code, captured.out, captured.err)


@pytest.fixture
def person(
    env: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], Person]:
    del env
    return lambda name: Person(tmp_path / name, monkeypatch, capsys)


@pytest.fixture
def admin(local: LocalPool) -> Iterator[Pool]:
    """The pool's administrator, who ends all tokens of the test's people when it is over."""
    with Pool(local.address, token_file=local.token_file, agent_sockets=[]) as pool:
        yield pool
        for principal in pool.access.principals():
            if principal.name != "admin":
                pool.access.revoke_tokens(principal=principal.name)
                for grant in principal.grants:
                    pool.access.revoke_role(principal.name, grant.role, scope=grant.scope)


def test_from_a_token_to_a_lease(cli: Run, person: Callable[[str], Person], admin: Pool, local: LocalPool) -> None:
    made = cli("access", "token", "ann", "--role", "user", "--tenant", "vision", "--ttl", "30d", "--note", "laptop")
    assert made.code == Exit.OK
    (line,) = made.out.splitlines()
    words = shlex.split(line)
    assert words[:2] == ["aliquot", "login"]
    assert decode(words[2]).addresses == (local.address,)
    assert "--address" in made.err

    ann = person("ann")
    # Nobody has told her where the pool is: at the usual place nobody answers, or somebody else's coordinator.
    assert ann("ls").code in {Exit.UNAVAILABLE, Exit.NOT_LOGGED_IN}
    assert f"logged in to {local.address} as ann" in ann(*words[1:]).out
    who = ann("whoami", "--json").document
    assert (who["principal"], who["grants"]) == ("ann", [{"role": "USER", "scope": "vision"}])
    assert who["expires_ms"] > 0
    assert who["token_origin"] == str(ann.credentials.path)
    assert "may: user on vision" in ann("whoami").out

    lease = ann("alloc", "0.25", "--tenant", "vision", "--json").document
    assert lease["asked_by"] == "ann"
    assert ann("release", lease["lease_id"]).code == Exit.OK
    refused = ann("alloc", "0.25", "--tenant", "other", "--json")
    assert refused.code == Exit.NOT_PERMITTED
    assert refused.error["reason"] == "ROLE_MISSING"
    assert "aliquot access grant ann user --tenant other" in refused.error["hint"]

    assert ann("logout").code == Exit.OK
    assert ann("logout").code == Exit.NOT_FOUND
    out = ann("whoami", "--coordinator", local.address)
    assert out.code == Exit.NOT_LOGGED_IN
    assert "aliquot login" in out.err
    assert "aliquot access bootstrap" in out.err


def test_a_string_on_standard_input_or_a_token_in_a_file(
    cli: Run, person: Callable[[str], Person], admin: Pool, local: LocalPool, tmp_path: Path
) -> None:
    text = cli("access", "token", "bob", "--role", "viewer").out.removeprefix("aliquot login ")
    bob = person("bob")
    assert bob("login", "-", stdin=text).code == Exit.OK
    assert bob("whoami", "--json").document["principal"] == "bob"

    raw = cli("access", "token", "bob", "--raw").out.strip()
    assert raw.startswith("alq_")
    again = person("bob-at-work")
    assert again("login", "-", "--coordinator", local.address, stdin=raw).code == Exit.OK
    assert again("whoami", "--json").document["token_id"] == raw.split("_")[1]

    file = tmp_path / "token"
    file.touch(mode=0o600)
    file.write_text(raw + "\n")
    third = person("bob-in-ci")
    assert third("whoami", "--token-file", str(file), "-c", local.address, "--json").document["principal"] == "bob"
    assert third("login", "--token-file", str(file), "-c", local.address).code == Exit.OK
    assert third("status").code == Exit.OK
    file.chmod(0o644)
    public = third("login", "--token-file", str(file), "-c", local.address, "--json")
    assert public.code == Exit.USAGE
    assert f"chmod 600 {file}" in public.error["hint"]


def test_a_token_in_a_file_is_for_its_owner_alone(
    cli: Run, person: Callable[[str], Person], admin: Pool, local: LocalPool, tmp_path: Path
) -> None:
    file = tmp_path / "dan.token"
    made = cli("access", "token", "dan", "--role", "viewer", "--file", str(file))
    text = file.read_text().strip()
    assert text not in made.out + made.err
    assert file.stat().st_mode & 0o777 == 0o600
    who = person("dan")("--token-file", str(file), "whoami", "--coordinator", local.address, "--json")
    assert who.document["principal"] == "dan"
    nowhere = cli("access", "token", "dan", "--file", str(tmp_path / "none" / "x"))
    assert nowhere.code != Exit.OK
    assert "aliquot access token revoke" in nowhere.err


def test_what_does_not_work_is_not_kept(person: Callable[[str], Person], local: LocalPool) -> None:
    eve = person("eve")
    forged = ConnectionString((local.address,), "alq_0123456789ab_" + "5" * 64).encode()
    assert eve("login", forged).code == Exit.NOT_LOGGED_IN
    invite = ConnectionString((local.address,), "alq_0123456789ab_" + "5" * 64, node="gpu-07").encode()
    assert "aliquot-agent join" in eve("login", invite).err
    assert eve("login").code == Exit.USAGE
    assert eve("login", forged[:-5]).code == Exit.USAGE
    assert eve("login", forged, "--token-file", "x").code == Exit.USAGE
    remote = ConnectionString(("gpu-a:7070",), "alq_0123456789ab_" + "5" * 64).encode()
    assert "without TLS" in eve("login", remote).err
    assert not eve.credentials.path.exists()


def test_logging_out_can_end_the_token(
    cli: Run, person: Callable[[str], Person], admin: Pool, local: LocalPool
) -> None:
    token = cli("access", "token", "ann", "--role", "viewer", "--raw").out.strip()
    ann = person("ann")
    ann("login", token, "-c", local.address)
    assert ann("logout", "--revoke").code == Exit.OK
    with Pool(local.address, token=token) as pool, pytest.raises(NotLoggedIn):
        pool.access.whoami()
    # What has ended already needs no ending, and is forgotten all the same.
    ann.credentials.put(Credential((local.address,), token))
    assert ann("logout", "--revoke", "-c", local.address).code == Exit.OK


def test_roles_are_given_shown_and_taken(cli: Run, admin: Pool) -> None:
    assert "ann: user on vision" in cli("access", "grant", "ann", "user", "--tenant", "vision").out
    both = cli("access", "grant", "ann", "viewer", "--json").document
    assert both["grants"] == [{"role": "VIEWER", "scope": ""}, {"role": "USER", "scope": "vision"}]
    listed = {each["name"]: each for each in cli("access", "ls", "--json").document["principals"]}
    assert listed["ann"]["tokens"] == 0
    assert "viewer, user on vision" in cli("access", "ls").out
    assert cli("access", "revoke", "ann", "viewer").code == Exit.OK
    assert "ann: no role" in cli("access", "revoke", "ann", "user", "--tenant", "vision").out
    last = cli("access", "revoke", "admin", "admin", "--json")
    assert last.code == Exit.REFUSED
    assert last.error["reason"] == "LAST_ADMINISTRATOR"
    for role in ("agent", "workload", "root"):
        assert cli("access", "grant", "ann", role).code == Exit.USAGE


def test_tokens_are_listed_and_ended(cli: Run, admin: Pool) -> None:
    made = cli("access", "token", "ann", "--role", "viewer", "--note", "for the wall", "--json").document
    token_id = made["issued"]["token_id"]
    assert decode(made["login"]).token == made["token"]
    cli("access", "token", "ann")
    table = cli("access", "token", "ls").out
    assert token_id in table
    assert "for the wall" in table
    assert made["token"] not in table
    assert [each["principal"] for each in cli("access", "token", "ls", "ann", "--json").document["tokens"]] == [
        "ann"
    ] * 2
    ended = cli("access", "token", "revoke", token_id, "--json").document["tokens"]
    assert [each["token_id"] for each in ended] == [token_id]
    unknown = cli("access", "token", "revoke", token_id, "--json")
    assert (unknown.code, unknown.error["reason"]) == (Exit.NOT_FOUND, "TOKEN_NOT_FOUND")
    assert "ended 1 token" in cli("access", "token", "revoke", "--principal", "ann").out
    for wrong in (["revoke"], ["ls", "a", "b"], ["ann", "bob"], ["ann", "--tenant", "vision"]):
        assert cli("access", "token", *wrong).code == Exit.USAGE


def test_who_changed_what_and_who_was_refused(cli: Run, person: Callable[[str], Person], admin: Pool) -> None:
    ann = person("ann")
    ann("login", cli("access", "token", "ann", "--role", "viewer").out.split()[-1])
    assert ann("cordon", "node-1").code == Exit.NOT_PERMITTED
    assert ann("access", "audit").code == Exit.NOT_PERMITTED
    cli("cordon", "node-1")
    cli("uncordon", "node-1")
    acted = cli("access", "audit", "--who", "admin", "--since", "1h", "--json").document["entries"]
    assert [each["action"] for each in acted[:3]] == ["Uncordon", "Cordon", "IssueToken"]
    assert len(cli("access", "audit", "--limit", "2", "--json").document["entries"]) == 2
    assert "Cordon" in cli("access", "audit").out
    refused = cli("access", "denials", "--json").document["denials"]
    assert {"Cordon", "ListAudit"} <= {each["method"] for each in refused if each["principal"] == "ann"}
    assert "Cordon" in cli("access", "denials").out


def test_the_way_back_in(cli: Run, person: Callable[[str], Person], admin: Pool, local: LocalPool) -> None:
    root = person("root")
    socket = str(local.layout.admin_socket)
    back = root("access", "bootstrap", "--socket", socket, "--json")
    assert back.code == Exit.OK
    assert back.document["principal"] == "admin"
    assert back.document["coordinator"] == [local.address]
    assert root("whoami").code == Exit.OK
    admin.access.revoke_tokens([back.document["token_id"]])
    assert root("whoami").code == Exit.NOT_LOGGED_IN
    # With a token that does not count any more, it is still the way back in.
    assert root("access", "bootstrap", "--socket", socket).code == Exit.OK
    assert root("whoami").code == Exit.OK
    assert root("access", "bootstrap", "--socket", "/nonexistent/admin.sock").code == Exit.UNAVAILABLE


def test_whom_to_trust_elsewhere_says_nothing_of_this_machines_socket(
    admin: Pool, local: LocalPool, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the coordinator's pod of the chart, whose certificate is another authority's."""
    del admin
    monkeypatch.setenv("ALIQUOT_CLIENT_TLS_CA_FILE", str(authority.ca))
    with Pool(f"unix:{local.layout.admin_socket}", token="") as pool:
        assert pool.access.bootstrap().token


def test_bootstrap_finds_the_socket_and_sends_the_token_nowhere_else(
    person: Callable[[str], Person], admin: Pool, local: LocalPool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    del admin
    # Beside it lies the socket of a coordinator that was killed.
    stale = tmp_path / "state" / "aliquot" / "access"
    stale.mkdir(parents=True, mode=0o700)
    (stale / "admin.sock").touch()
    state = tmp_path / "machine"
    state.mkdir()
    (state / "access").symlink_to(local.layout.access)
    monkeypatch.setattr("aliquot.cli._bootstrapping.MACHINE_STATE", state)
    root = person("root")
    config = root.credentials.path.with_name("config.toml")
    config.parent.mkdir(parents=True, mode=0o700)
    config.write_text('[client]\ncoordinator = ["gpu-a.example:7070"]\n')
    # This machine's coordinator is meant, though the settings name another.
    there = root("access", "bootstrap")
    assert there.code == Exit.OK
    assert f"logged in to {local.address} as admin" in there.out
    assert "your settings still name gpu-a.example:7070" in there.err
    assert root.credentials.find(["gpu-a.example:7070"]) is None
    assert root("whoami", "-c", local.address).code == Exit.OK


def test_bootstrap_shows_its_token_to_nobody_who_listens_where_the_coordinator_does_not() -> None:
    """Another user of the machine can take a port of loopback that the coordinator has on another address."""
    socket = Path("/nonexistent/access/admin.sock")
    token = Token("1" * 12, "admin", 0, 0, "", "")
    for ca in ("", "PEM"):
        made = IssuedToken("alq_x", token, ("10.1.2.3:7070",), ca)
        for choice in _choices(None, socket, made):
            assert choice.ca or not any(map(is_local_address, choice.addresses))
    made = IssuedToken("alq_x", token, ("127.0.0.1:7070",))
    assert [choice.addresses for choice in _choices(None, socket, made)] == [("127.0.0.1:7070",)]


def test_without_a_socket_bootstrap_says_where_it_looked(
    person: Callable[[str], Person], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("aliquot.cli._bootstrapping.MACHINE_STATE", tmp_path / "none")
    lost = person("root")("access", "bootstrap", "--json")
    assert lost.code == Exit.NOT_FOUND
    assert "--socket" in lost.error["hint"]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Path]:
    """A coordinator that others can reach, with nothing set up; its state's folder, of a short name for its socket."""
    state = Path(tempfile.mkdtemp(prefix="aq-"))
    command = [sys.executable, "-m", "aliquot.coordinator", "--listen", "0.0.0.0:0", "--metrics-port", "0"]
    command += ["--journal", f"sqlite:{state / 'coordinator.db'}"]
    running = Child("coordinator", command, clean_environment({}), tmp_path / "service.log")
    running.start()
    try:
        running.wait_ready(60)
        yield state
    finally:
        running.stop()
        shutil.rmtree(state)


def test_from_a_fresh_coordinator_to_somebody_on_another_machine(
    person: Callable[[str], Person], service: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is set up but what the coordinator has made itself: TLS, and the way in on its own machine."""
    monkeypatch.setattr("aliquot.cli._bootstrapping.MACHINE_STATE", service)
    root, ann = person("root"), person("ann")
    assert root("access", "bootstrap").code == Exit.OK
    made = root("access", "token", "ann", "--role", "user", "--tenant", "vision")
    assert "this machine only" not in made.err
    said = decode(made.out.split()[-1])
    assert said.ca_pem.startswith("-----BEGIN CERTIFICATE-----")
    assert not any(map(is_local_address, said.addresses))

    assert ann(*made.out.split()[1:]).code == Exit.OK
    who = ann("whoami", "--json").document
    assert (who["principal"], who["coordinator"]) == ("ann", list(said.addresses))
    # Whom she trusts, her login says, and nobody else is believed.
    kept = ann.credentials.find(said.addresses)
    assert kept is not None
    ann.credentials.put(Credential(kept.addresses, kept.token), current=True)
    assert "without TLS" in ann("whoami").err


def test_values_and_errors_in_a_program(local: LocalPool, admin: Pool) -> None:
    made = admin.access.issue_token("ci/nightly", grants=[RoleGrant(Role.USER, "vision")], ttl_ms=60_000, note="n")
    assert made.issued.principal == "ci/nightly"
    assert made.token not in repr(made)
    with Pool(local.address, token=made.token, agent_sockets=[]) as pool:
        me = pool.access.whoami()
        assert [str(grant) for grant in me.grants] == ["user on vision"]
        with pytest.raises(NotPermitted):
            pool.access.principals()
        with pytest.raises(NotPermitted):
            pool.access.issue_token("eve", grants=[RoleGrant(Role.ADMIN)])
        own = pool.access.issue_token()
        assert own.issued.expires_ms <= made.issued.expires_ms
        admin.access.revoke_tokens(principal="ci/nightly")
        with pytest.raises(NotLoggedIn):
            pool.access.whoami()


def test_a_secret_is_only_where_it_must_be(
    cli: Run, person: Callable[[str], Person], admin: Pool, local: LocalPool, tmp_path: Path
) -> None:
    ann = person("ann")
    made = cli("access", "token", "ann", "--role", "user", "--tenant", "vision", "--json").document
    supplied = local.layout.admin_token.read_text().strip()
    secrets = {made["token"].split("_")[2], supplied.split("_")[2]}
    ann("login", made["login"], "--verbose")
    ann("login", made["login"], "--json")
    for command in (
        "whoami",
        "ls",
        "access ls",
        "access token ls",
        "access audit",
        "watch --nonsense",
        "cordon node-1",
    ):
        ann(*command.split())
        ann(*command.split(), "--json")
    # Where it does not belong, it is cut out of what is said.
    said = ann("whoami", made["token"]).err + ann("ls", made["login"], "--json").err
    said += ann("get", made["token"]).err + ann("login", made["login"] + "%").err
    said += ann("access", "grant", made["token"], "viewer").err + ann("access", "token", "revoke", made["token"]).err
    admin.access.revoke_tokens([made["issued"]["token_id"]])
    said += ann("ls", "--json").err + ann("logout").out + ann.said
    assert not _shown(secrets | {made["login"][8:]}, said.encode())

    allowed = {local.layout.admin_token}
    kept = [path for folder in (local.layout.root, tmp_path) for path in folder.rglob("*") if path.is_file()]
    found = {path for path in kept if _shown(secrets, path.read_bytes())}
    assert found == allowed
    assert stat.S_IMODE(local.layout.admin_token.stat().st_mode) == 0o600
    for child in local.children:
        for file in ("cmdline", "environ"):
            assert not _shown(secrets, Path(f"/proc/{child.pid}/{file}").read_bytes()), child.name


def _shown(secrets: set[str], where: bytes) -> set[str]:
    return {secret for secret in secrets if secret.encode() in where}
