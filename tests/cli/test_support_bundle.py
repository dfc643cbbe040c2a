"""`aliquot support-bundle`: what others need is in it, and none of the secrets that this pool has made."""

from __future__ import annotations

import base64
import json
import tarfile
from pathlib import Path

import pytest

from aliquot.cli.localpool import LocalPool
from aliquot.client import Pool
from aliquot.client.access import Role, RoleGrant
from aliquot.common.redacting import redacted
from aliquot.coordinator.writing.journal.sqlite import SqliteJournal
from tests.cli.conftest import Cli

PASSWORD = "correct horse battery staple"
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJlLW9mLW5vYm9keQ"


def contents(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        return {
            member.name.partition("/")[2]: file.read().decode()
            for member in archive
            if (file := archive.extractfile(member)) is not None
        }


def secrets_of(local: LocalPool, pool: Pool) -> dict[str, str]:
    """Every kind that there is."""
    lease = pool.allocate("0.1,1Gi", detached=True)
    made = pool.access.invite_node("another")
    assert local.token_file is not None
    found = {
        "the administrator's token": local.token_file.read_text().strip(),
        "another token": pool.access.issue_token("ci", grants=(RoleGrant(Role.VIEWER),), ttl_ms=600_000).token,
        "an invite": made.invite,
        "a login string": pool.connection_string(made.invite, node=made.node, ca_pem=made.ca_pem),
        "a lease's secret": lease.secret,
        "a session": JWT,
        "a password": PASSWORD,
    }
    journal = SqliteJournal(local.layout.journal)
    secret, _ = journal.identity()
    found["the pool's secret"] = secret.hex()
    found["the pool's secret, otherwise"] = base64.b64encode(secret).decode()
    for path in local.layout.root.rglob("*"):
        if path.is_file() and path.stat().st_size < 20_000 and b"PRIVATE KEY" in path.read_bytes():
            found[f"the key {path.name} of {path.parent.name}"] = path.read_text()
    return found


def test_none_of_the_pools_secrets_is_in_it(cli: Cli, local: LocalPool, tmp_path: Path) -> None:
    with local.connect() as pool:
        found = secrets_of(local, pool)
    assert any(name.startswith("the key") for name in found), "nodes have keys"
    log, config, out = tmp_path / "own.log", tmp_path / "coordinator.toml", tmp_path / "bundle.tar.gz"
    # As careless as it gets: everything is logged, and stands in the settings.
    log.write_text("\n".join(f"what {name} is: {value}" for name, value in found.items() if name != "a password"))
    config.write_text(
        f'journal = "postgres:host=db user=aliquot password={PASSWORD.replace(" ", "-")}"\n'
        f'password = "{PASSWORD}"\nclient_secret: {PASSWORD!r}\n'
        'proxy = "http://me:horse@proxy:3128"\n'
        'metrics_token_file = "/etc/aliquot/metrics.tokens"\n'
    )
    flags = ("--log", str(log), "--config", str(config), "--state-dir", str(local.layout.root))
    result = cli("support-bundle", "--out", str(out), *flags)
    assert result.code == 0, result.err
    assert out.stat().st_mode & 0o777 == 0o600
    files = contents(out)
    whole = "\n".join(files.values())
    for name, secret in found.items():
        for line in filter(lambda line: len(line) > 8 and "PRIVATE KEY" not in line, secret.splitlines()):
            assert line not in whole, name
    assert "horse" not in whole
    assert "/etc/aliquot/metrics.tokens" in files["settings/coordinator.toml"], "where a file lies is no secret"


def test_what_others_need_is_in_it(cli: Cli, local: LocalPool, tmp_path: Path) -> None:
    with local.connect() as pool:
        lease = pool.allocate("0.1,1Gi", tenant="lab", detached=True)
    out = tmp_path / "bundle.tar.gz"
    flags = ("--lease", lease.lease_id, "--state-dir", str(local.layout.root), "--log", str(tmp_path / "none.log"))
    document = cli("support-bundle", "--out", str(out), "--json", *flags).document
    files = contents(out)
    assert set(document["files"]) == set(files)
    assert json.loads(files["status.json"])["granting"] is True
    assert {node["name"] for node in json.loads(files["nodes.json"])} == {"node-1", "node-2"}
    assert any(each["lease_id"] == lease.lease_id for each in json.loads(files["leases.json"]))
    assert json.loads(files[f"timelines/{lease.lease_id}.json"])["steps"][0]["what"] == "QUEUED"
    assert {"health.json", "tenancy.json", "maintenance.json", "set-aside.json", "about.json"} <= set(files)
    assert "aliquot_leading 1.0" in files["metrics/0.txt"]
    assert "aliquot_device_healthy" in files["metrics/1.txt"]
    assert "agent started" in files["logs/node-1.log"]
    assert "none.log" in files["missing.txt"]


def test_it_is_made_where_no_coordinator_answers(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "bundle.tar.gz"
    nowhere = ("--coordinator", "127.0.0.1:1", "--timeout", "1s", "--state-dir", str(tmp_path))
    assert cli("support-bundle", "--out", str(out), *nowhere).code == 0
    assert "status.json" in contents(out)["missing.txt"]


def test_it_overwrites_nothing_and_says_so(cli: Cli, tmp_path: Path) -> None:
    nowhere = ("--coordinator", "127.0.0.1:1", "--timeout", "1s", "--state-dir", str(tmp_path))
    there, no_folder = tmp_path / "there.tar.gz", tmp_path / "none" / "out.tar.gz"
    there.write_text("mine")
    for out in (there, no_folder):
        result = cli("support-bundle", "--out", str(out), *nowhere)
        assert (result.code, "Traceback" in result.err, str(out) in result.err) == (1, False, True)
    assert there.read_text() == "mine"


WORD = "hunter2xyz"
"""What somebody's secret is, which looks like no secret."""


@pytest.mark.parametrize(
    "text",
    [
        f"secret_key={WORD}",
        f"AWS_SECRET_ACCESS_KEY={WORD}",
        f"pwd={WORD}",
        f"password=/{WORD}",
        f'password = """\n{WORD}\nmore {WORD}\n"""',
        f"password = '''{WORD}",
        f"password: |\n  {WORD}\n\n  and {WORD}\nnode: n1",
        f"passphrase: >-\n    {WORD}\n",
        f"tokens:\n  - {WORD}\n  - b{WORD}\nnode: n1",
        f"--password {WORD}",
        f"mysql --token={WORD}",
        f"sshpass -p {WORD} ssh",
        f"sshpass -p{WORD} ssh",
        f"https://idp/callback?code={WORD}&state={WORD}",
        f"code={WORD}",
        f"tgram://{WORD}/123",
        f"to = [\n  'slack://{WORD}/a/b',\n  \"discord://{WORD}\",\n]",
        f"https://hooks.slack.com/services/T0/B0/{WORD}XX",
        f"https://me:{WORD}@host/x",
        f"postgres://u:{WORD}@h/db",
        f"host=db user=a password={WORD}",
        f"password: correct {WORD} staple",
        f'"password": "a\\"{WORD}"',
        f"{{'api_key': '{WORD}'}}",
        f"labels: {{wandb: {WORD}}}",
        f"auth = {{ user = 'a', pass = '{WORD}' }}",
        f"PGPASSWORD={WORD} psql",
        f"X-Api-Key: {WORD}",
        f"Cookie: aliquot-7074={WORD}",
        f"Authorization: Digest {WORD}",
        f"password is {WORD}",
        f"with the token {WORD}",
        f"mySecretThing => {WORD}",
        f"what_nobody_has_heard_of = '{WORD}'",
        f"- name: DB_PASS\n  value: {WORD}",
        f"2026-11-21T09:48:01.123Z INFO    aliquot.agent: no login password={WORD} node=n1",
        f'{{"message": "x", "stripe": "{WORD}"}}',
    ],
)
def test_what_is_not_known_to_be_harmless_is_not_shown(text: str) -> None:
    said = redacted(text)
    assert WORD not in said
    assert redacted(said) == said


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-21T09:48:01.123Z INFO    aliquot.agent: agent started node=node-1 lease_id=l-1 tier=watchdog",
        "error: can't reach 127.0.0.1:7070: connection refused",
        'aliquot_device_healthy{node="n",uuid="GPU-5f3c",model="A100-40"} 1.0',
        "ValueError: what was wrong",
        'listen = "0.0.0.0:7070"\ngrace = "30s"\nretain = 512\nstrict = true',
        '{"ts":"2026-11-21","level":"info","logger":"aliquot","message":"lease granted","lease_id":"l-1"}',
        "see http://127.0.0.1:7071/metrics.",
        "state_dir: /var/lib/aliquot",
    ],
)
def test_what_others_need_stays_as_it_is(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('{"secret": "abc", "tenant": "lab"}', '"tenant": "lab"'),
        ("Authorization: Bearer abcdefgh12345", "Authorization"),
        ("token_file = /etc/token", "/etc/token"),
        ('aliquot_denied_total{reason="TOKEN_UNKNOWN"} 3.0', 'reason="TOKEN_UNKNOWN"} 3.0'),
        ("GPU-5f3c0e1a-0000-4b1a-9c3d-000000000007 is hot", "GPU-5f3c0e1a-0000-4b1a-9c3d-000000000007"),
        ("lease l-0123456789abc of node gpu-07", "l-0123456789abc of node gpu-07"),
    ],
)
def test_what_is_no_secret_stays(text: str, kept: str) -> None:
    said = redacted(text)
    assert kept in said
    assert 'abc"' not in said
    assert "abcdefgh12345" not in said
    assert redacted(said) == said
