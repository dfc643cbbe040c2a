"""Simulated cards of other vendors, made by a command: their agent's variables, as JSON.

python -m aliquot.simgpu.vendors /tmp/machine --drm MI300X,B60 --ascend 910B3 --cut 0:vir05_1c_16g:100
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection
from pathlib import Path

from aliquot.common.errors import AliquotError
from aliquot.simgpu.drm import machine as drm
from aliquot.simgpu.drm.models import MODELS
from aliquot.simgpu.vendors.dcmi import TEMPLATES, SimAscend, SimChip


def main(arguments: list[str] | None = None) -> int:
    """0; 2 where the cards can't be made."""
    options = _parser().parse_args(arguments)
    options.directory.mkdir(parents=True, exist_ok=True)
    kinds: list[str] = []
    variables: dict[str, str] = {}
    try:
        if options.drm:
            drm.create(options.directory / "drm", options.drm, options.host)
            kinds.append(f"drm:{options.directory / 'drm'}")
        if options.ascend:
            ascend = SimAscend.create(
                options.directory / "ascend", *(SimChip(card, name=name) for card, name in enumerate(options.ascend))
            )
            for card, template, number in options.cut:
                ascend.cut(card, 0, template, number)
            variables |= ascend.environment()
            kinds.append("ascend")
    except (AliquotError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(json.dumps({"devices": ",".join(kinds), "variables": variables}) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m aliquot.simgpu.vendors", description="Simulated cards of other vendors."
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--drm", type=_among(MODELS), default=[], metavar="MODELS", help=", ".join(MODELS))
    parser.add_argument("--ascend", type=_among(TEMPLATES), default=[], metavar="CHIPS", help=", ".join(TEMPLATES))
    parser.add_argument("--cut", type=_cut, action="append", default=[], metavar="CARD:TEMPLATE:NUMBER")
    parser.add_argument("--host", default="host")
    return parser


def _among(known: Collection[str]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)} can't be simulated")
        return names

    return read


def _cut(text: str) -> tuple[int, str, int]:
    card, template, number = text.split(":")
    return int(card), template, int(number)


if __name__ == "__main__":
    sys.exit(main())
