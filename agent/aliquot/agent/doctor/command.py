"""`aliquot doctor`: a report on this node, for people or as JSON."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from aliquot.agent.core.samples import DeviceInfo
from aliquot.agent.devices.base import DeviceError, Discovery
from aliquot.agent.devices.kinds import AUTO, make_backend
from aliquot.agent.doctor.checks import Finding, Mark, look
from aliquot.agent.doctor.prove import prove
from aliquot.agent.enforce.base import PROOFS
from aliquot.agent.enforce.by_vendor import vendor_of
from aliquot.agent.settings import ENV_PREFIX, Settings
from aliquot.common import config
from aliquot.common.entry import Entry
from aliquot.common.tiers import Tier

EXIT_PROBLEM = 1
_ALL = tuple(tier.word for tier in Tier if tier is not Tier.NONE)


def findings(
    *, prove_tiers: bool, directory: Path, settings: Settings, devices: str = AUTO, proven: Path | None = None
) -> Iterator[Finding]:
    """Look, then try. `directory` holds scratch files that programs must be able to load; `settings`: of this node's
    agent; `devices`: as its setting; `proven`: see `prove`. Raises `ConfigError`.
    """
    backend = make_backend(devices)
    found = Discovery(())
    why_not = ""
    try:
        backend.open()
        found = backend.discover()
    except DeviceError as error:
        why_not = error.explain()
    yield from look(backend, why_not, found, settings.enforcement_dir)
    if prove_tiers:
        for device, names in _tried_on(found.devices):
            yield from prove(backend, device, directory, names, proven)
    if not why_not:
        backend.close()


def _tried_on(devices: Sequence[DeviceInfo]) -> list[tuple[DeviceInfo, tuple[str, ...]]]:
    """One device of each kind, and what is tried on it: where there are MIG instances beside undivided cards, each tier
    on what it is for.
    """
    found: list[tuple[DeviceInfo, tuple[str, ...]]] = []
    for vendor in dict.fromkeys(vendor_of(device) for device in devices):
        own = [device for device in devices if vendor_of(device) == vendor and not device.shut]
        parts = [device for device in own if device.mig_profile][:1]
        cards = [device for device in own if not device.mig_profile][:1]
        if parts and cards:
            found += [(parts[0], (Tier.MIG.word,)), (cards[0], tuple(name for name in _ALL if name != Tier.MIG.word))]
        else:
            found += [(device, _ALL) for device in (*parts, *cards)]
    return found


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "--devices", default=AUTO, metavar="KIND[,KIND...]", help="as the agent's setting (default: auto)"
    )
    parser.add_argument("--state-dir", type=Path, help="the agent's: shows its MPS daemons, keeps what root has proven")
    parser.add_argument("--no-prove", action="store_true", help="only look, run nothing on a GPU")
    parser.add_argument("--directory", type=Path, help="where to put scratch files: not on a noexec mount")


def run(options: argparse.Namespace) -> int:
    """Report; 1 where something is wrong. With `--json`, one object."""
    logging.getLogger("aliquot.agent.audit").setLevel(logging.ERROR)
    flags = {} if options.state_dir is None else {"state_dir": str(options.state_dir)}
    settings = config.load(Settings, env_prefix=ENV_PREFIX, env=os.environ, flags=flags).settings
    proven = settings.state_dir / PROOFS if os.geteuid() == 0 else None
    as_json = bool(getattr(options, "json", False) or getattr(options, "output", "") == "json")
    found: list[Finding] = []
    with tempfile.TemporaryDirectory(prefix="aliquot-doctor-", dir=options.directory) as scratch:
        Path(scratch).chmod(0o755)
        for finding in findings(
            prove_tiers=not options.no_prove,
            directory=Path(scratch),
            settings=settings,
            devices=options.devices,
            proven=proven,
        ):
            found.append(finding)
            if not as_json:
                sys.stdout.write(f"{finding.mark.value:8} {finding.subject:16} {finding.text}\n")
                sys.stdout.flush()
    if as_json:
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    return EXIT_PROBLEM if any(finding.mark is Mark.BAD for finding in found) else 0


DOCTOR = Entry(configure, run)
