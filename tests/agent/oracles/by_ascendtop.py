"""Ascend cards as `ascendtop` reads them."""

from __future__ import annotations

import dataclasses
import json
import sys

import ascendtop

snapshot = ascendtop.DcmiBackend().snapshot()
sys.stdout.write(
    json.dumps(
        {
            "devices": [dataclasses.asdict(each) for each in snapshot.devices],
            "processes": [[each.npu_id, each.pid, each.memory_mb] for each in snapshot.processes],
        }
    )
)
