"""The credentials file: what is put in is found, for its owner only, however many write at the same time."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from aliquot.client.credentials import Credential, CredentialsFile, read_token_file, same_place
from aliquot.common.errors import ConfigError, SecurityError

TOKEN = "alq_0123456789ab_" + "5" * 64
OTHER = "alq_ba9876543210_" + "6" * 64


@pytest.fixture
def file(tmp_path: Path) -> CredentialsFile:
    return CredentialsFile.of({"XDG_CONFIG_HOME": str(tmp_path / "config")})


def test_where_it_is(tmp_path: Path) -> None:
    assert CredentialsFile.of({"HOME": "/h"}).path == Path("/h/.config/aliquot/credentials.json")
    assert CredentialsFile.of({"HOME": "/h", "XDG_CONFIG_HOME": "/x"}).path == Path("/x/aliquot/credentials.json")


def test_what_is_put_in_is_found_by_each_of_its_addresses(file: CredentialsFile) -> None:
    assert file.find(["gpu-a:7070"]) is None
    kept = Credential(("gpu-a:7070", "gpu-b:7070"), TOKEN, "-----BEGIN CERTIFICATE-----")
    file.put(kept)
    for addresses in (["gpu-a:7070"], ["gpu-b:7070"], ["elsewhere:1", "dns:///GPU-B:7070"]):
        assert file.find(addresses) == kept
    assert file.find(["gpu-a:7071"]) is None
    assert TOKEN not in repr(kept)


def test_ways_to_say_this_machine_are_the_same(file: CredentialsFile) -> None:
    file.put(Credential(("127.0.0.1:7070",), TOKEN))
    for address in ("localhost:7070", "127.0.0.1:7070", "[::1]:7070", "ipv4:127.0.0.1:7070", "LOCALHOST:7070"):
        assert file.find([address]) is not None, address
        assert same_place("127.0.0.1:7070", address)
    for address in ("127.0.0.1:7071", "127.0.0.2:7070", "unix:/localhost:7070"):
        assert file.find([address]) is None, address


def test_an_address_belongs_to_one_pool(file: CredentialsFile) -> None:
    file.put(Credential(("a:1", "b:1"), TOKEN))
    file.put(Credential(("b:1",), OTHER))
    assert [getattr(file.find([address]), "token", None) for address in ("a:1", "b:1")] == [TOKEN, OTHER]


def test_the_last_login_is_the_one_that_is_meant(file: CredentialsFile) -> None:
    assert file.current() is None
    file.put(Credential(("a:1",), TOKEN), current=True)
    file.put(Credential(("b:1",), OTHER))
    meant = file.current()
    assert meant is not None
    assert meant.addresses == ("a:1",)
    assert file.remove(["a:1"])
    assert file.current() is None


def test_what_is_taken_out_is_gone_and_others_stay(file: CredentialsFile) -> None:
    assert not file.remove(["a:1"])
    file.put(Credential(("a:1", "b:1"), TOKEN))
    file.put(Credential(("c:1",), OTHER))
    assert file.remove(["b:1"])
    assert not file.remove(["b:1"])
    assert file.find(["a:1"]) is None
    assert file.find(["c:1"]) is not None
    assert TOKEN not in file.path.read_text()


def test_only_its_owner_can_read_it(file: CredentialsFile) -> None:
    before = os.umask(0)
    try:
        file.put(Credential(("a:1",), TOKEN))
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
    assert [path.name for path in file.path.parent.iterdir() if path.suffix not in {".json", ".lock"}] == []


def test_a_file_that_others_can_read_is_refused_with_the_command_that_mends_it(file: CredentialsFile) -> None:
    file.put(Credential(("a:1",), TOKEN))
    for mode in (0o644, 0o640, 0o606):
        file.path.chmod(mode)
        with pytest.raises(SecurityError) as refused:
            file.find(["a:1"])
        assert f"chmod 600 {file.path}" in refused.value.hint
        with pytest.raises(SecurityError):
            file.put(Credential(("b:1",), OTHER))
    file.path.chmod(0o600)
    assert file.find(["a:1"]) is not None


def test_a_folder_that_others_can_write_to_is_refused(file: CredentialsFile) -> None:
    file.path.parent.mkdir(parents=True)
    file.path.parent.chmod(0o777)
    with pytest.raises(SecurityError) as refused:
        file.put(Credential(("a:1",), TOKEN))
    assert "chmod go-w" in refused.value.hint


@pytest.mark.root("to give a file to another user")
def test_a_file_of_somebody_else_is_refused(file: CredentialsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file.put(Credential(("a:1",), TOKEN))
    os.chown(file.path, 4242, -1)
    monkeypatch.setattr(os, "geteuid", lambda: 4243)
    with pytest.raises(SecurityError, match="belongs to another user"):
        file.find(["a:1"])


def test_a_damaged_file_is_said_so_without_what_is_in_it(file: CredentialsFile) -> None:
    file.put(Credential(("a:1",), TOKEN))
    file.path.write_text(f'{{"pools": "{TOKEN}')
    with pytest.raises(ConfigError, match="damaged") as refused:
        file.find(["a:1"])
    assert TOKEN not in refused.value.explain()


def test_many_write_at_the_same_time_and_none_undoes_another(file: CredentialsFile) -> None:
    def login(number: int) -> None:
        CredentialsFile(file.path).put(Credential((f"host-{number}:1",), TOKEN))

    writers = [threading.Thread(target=login, args=(number,)) for number in range(16)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert all(file.find([f"host-{number}:1"]) for number in range(16))


def test_a_token_in_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "token"
    with pytest.raises(ConfigError, match="no such file"):
        read_token_file(path)
    path.write_text(f"  {TOKEN}\n")
    path.chmod(0o600)
    assert read_token_file(path) == TOKEN
    path.chmod(0o644)
    with pytest.raises(SecurityError) as refused:
        read_token_file(path)
    assert f"chmod 600 {path}" in refused.value.hint
    # What a container's runtime mounts is for all of the container's programs.
    monkeypatch.setattr("aliquot.client.credentials._MOUNTED", (tmp_path,))
    assert read_token_file(path) == TOKEN


@pytest.mark.parametrize("content", ["", "two words", "x" * 5000, "\x00"])
def test_what_holds_no_token(content: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError):
        read_token_file(path)
