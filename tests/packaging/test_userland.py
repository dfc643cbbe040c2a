"""The page for servers in a userland with nothing of this one's: a fresh Debian, of whose commands it is made.

By hand, since it fetches a distribution: `make one T=tests/packaging/test_userland.py`, as root where debootstrap is.
What has no place in a chroot (systemd's own start, ssh) is told on the page, with what came of it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.layout import REPOSITORY
from tools.bundling.required import Target, fetch, requirements

MIRROR = "http://deb.debian.org/debian"
PACKAGES = "python3-venv,sudo,systemd"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root("to make a userland"),
    pytest.mark.timeout(1800),
    pytest.mark.skipif(shutil.which("debootstrap") is None, reason="needs debootstrap"),
]


def blocks(heading: str) -> list[str]:
    """What the page says to run below a heading."""
    page = (REPOSITORY / "docs" / "servers.md").read_text(encoding="utf-8")
    (section,) = re.findall(rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    found = re.findall(r"(?:^    .*\n|(?<=\n)\n(?=    ))+", section, re.MULTILINE)
    return [re.sub(r"^    ", "", each, flags=re.MULTILINE) for each in found if each.strip()]


class Userland:
    """A distribution below a folder, with a network of its own that leads nowhere."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def run(self, user: str, script: str) -> str:
        """Run lines as somebody, in their home; what is left running ends with them."""
        prepare = f"ip link set lo up && mount -t proc proc {self.root}/proc && mount --rbind /dev {self.root}/dev"
        enter = f"exec chroot {self.root} setpriv --reuid {user} --regid {user} --init-groups bash -euo pipefail -s"
        home = "/root" if user == "root" else f"/home/{user}"
        paths = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        done = subprocess.run(
            ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", f"{prepare} && {enter}"],
            input=f"cd\n{script}\n",
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
            env={"PATH": paths, "HOME": home, "USER": user, "LANG": "C.UTF-8", "TERM": "dumb"},
        )
        assert done.returncode == 0, (script, done.stdout[-3000:], done.stderr[-3000:])
        return done.stdout


@pytest.fixture(scope="module", params=["bookworm", "trixie"])
def userland(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, native: Path
) -> Iterator[Userland]:
    root = tmp_path_factory.mktemp(request.param)
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", request.param, str(root), MIRROR]
    if subprocess.run(command, capture_output=True, text=True, check=False).returncode:
        pytest.skip("needs Debian's packages")
    there = Userland(root)
    python = there.run("root", "python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])'").strip()
    wheels = root / "wheels"
    wheels.mkdir()
    shutil.copy(native, wheels)
    fetch(requirements(REPOSITORY / "pyproject.toml", ["pool"], []), Target.of(python, "manylinux_2_28_x86_64"), wheels)
    (root / "etc" / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    there.run("root", "useradd --create-home ann; echo 'ann ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/ann")
    shutil.copy(native, root / "home" / "ann")
    yield there
    shutil.rmtree(root)


def test_the_coordinators_machine_gets_units_that_systemd_understands(userland: Userland) -> None:
    install, names, *_ = blocks("1. The coordinator and the console, on `coord`")
    userland.run("ann", install + names)
    said = userland.run("root", "systemd-analyze verify /etc/systemd/system/aliquot-* 2>&1 || true; id aliquot")
    assert "uid=" in said
    assert [line for line in said.splitlines() if "aliquot-" in line and ".service" in line] == []
    settings = (userland.root / "etc" / "aliquot" / "coordinator.toml").read_text()
    assert '\nnames = ["coord.example.org"]\n' in settings


def test_the_rehearsal_goes_from_nothing_to_teams_and_back_from_a_backup(userland: Userland) -> None:
    (rehearsal,) = blocks("A rehearsal")
    teams = blocks("3. The teams")[0].partition("sudo ")[0].replace("gpus: 16", "gpus: 1")
    (userland.root / "home" / "ann" / "teams.yaml").write_text(teams)
    script = """
        ready() {
            for _ in $(seq 60); do
                [ "$(aliquot nodes | grep -cw ready)" != 2 ] || return 0
                sleep 1
            done
            aliquot nodes; false
        }
        ready
        aliquot apply -f teams.yaml
        aliquot alloc 0.25,5Gi --tenant vision
        mkdir backups
        aliquot journal backup sqlite:pool.db backups/one.db
        aliquot alloc 0.5,10Gi --tenant speech
        kill -KILL %1
        aliquot journal restore backups again.db
        aliquot-coordinator --listen 127.0.0.1:7070 --journal sqlite:again.db &
        until aliquot access bootstrap --socket again.db.access/admin.sock; do sleep 1; done
        ready
        aliquot ls
        aliquot health
    """
    said = userland.run("ann", "set -m\n" + rehearsal + script)
    listed = said[said.rindex("LEASE ") : said.rindex("UNKNOWN SLICE")]
    assert "0.25,5Gi" in listed
    assert "0.5,10Gi" not in listed, "granted after the backup: in no books, and seen"
