"""The product's programs as systemd services: `aliquot-agent install-service` and its kind.

A unit names the program by its path, which only the installed program knows; so each writes its own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from aliquot.common.errors import AliquotError

WORD = "install-service"
OWNER = "aliquot"
_PREFIX = "/usr/local/bin/"
_BESIDE = {"aliquot-coordinator": ("aliquot-backup.service", "aliquot-backup.timer")}
"""Units that come with a program's own."""


def install_service(program: str, arguments: Sequence[str]) -> int:
    """Write a program's unit, and a file of settings where there is none. Returns the exit code.

    Raises:
        AliquotError: files can't be written, or the program lies where a service can't reach it.
    """
    parser = argparse.ArgumentParser(f"{program} {WORD}", description="Make this program a service of systemd.")
    parser.add_argument("--root", type=Path, default=Path("/"), help="write below this folder, as for an image")
    root: Path = parser.parse_args(arguments).root
    folder = Path(shutil.which(sys.argv[0]) or sys.argv[0]).resolve().parent
    if folder.is_relative_to("/home") or folder.is_relative_to("/root"):
        raise AliquotError(
            f"{folder} is somebody's home, which services do not see",
            hint="install it for all, such as by python3 -m venv /opt/aliquot",
        )
    here = root == Path("/")
    try:
        for name in (f"{program}.service", *_BESIDE.get(program, ())):
            _write(root / "etc/systemd/system" / name, _source(name).replace(_PREFIX, f"{folder}/"))
        settings = root / "etc/aliquot" / f"{program.removeprefix('aliquot-')}.toml"
        if not settings.exists():
            _write(settings, _source(settings.name))
    except OSError as error:
        raise AliquotError(f"can't write {error.filename}: {error.strerror}", hint="run it as root") from error
    if here:
        _make_owner()
        if Path("/run/systemd/system").is_dir():
            subprocess.run(["systemctl", "daemon-reload"], check=True)  # noqa: S607 - where the system has it
    sys.stdout.write(f"settings are in {settings}; then: systemctl enable --now {program}\n")
    return 0


def _source(name: str) -> str:
    """A file of `deploy/systemd`, which wheels carry beside this module."""
    own = Path(__file__).parent
    folders = (own / "systemd", own.parents[2] / "deploy" / "systemd")
    return next(folder / name for folder in folders if folder.is_dir()).read_text(encoding="utf-8")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o644)
    sys.stdout.write(f"wrote {path}\n")


def _make_owner() -> None:
    import pwd  # noqa: PLC0415 - is not on every system, and services are Linux's

    try:
        pwd.getpwnam(OWNER)
    except KeyError:
        words = ("useradd", "--system", "--home-dir", "/var/lib/aliquot", "--shell", "/usr/sbin/nologin", OWNER)
        subprocess.run(words, check=True, env={**os.environ, "LC_ALL": "C"})  # noqa: S603 - fixed words
