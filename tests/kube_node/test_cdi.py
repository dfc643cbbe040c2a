"""Descriptions of the Container Device Interface: that every runtime we name can read what we write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aliquot.client import Tier
from aliquot.client.local import CgroupAttachment
from aliquot.kube.node.injection import CDI_KIND, CdiInjection, place
from tests.kube_node import cdi

VARIABLES = {"ALIQUOT_SLICE_IDS": "l-1.1.0", "LD_PRELOAD": "/x/lib.so", "CUDA_VISIBLE_DEVICES": "GPU-1"}


def described(folder: Path, *units: str, folders: tuple[str, ...] = ()) -> str:
    CdiInjection(folder).fulfil(units, CgroupAttachment(VARIABLES, ("l-1.1.0",), folders, Tier.PRELOAD, ()))
    return f"{CDI_KIND}={place(units)}"


@pytest.mark.parametrize("units", [("a",), ("b",), ("percent-00001", "percent-00002"), ("claim-0123",)])
def test_a_description_is_of_the_least_version_that_it_needs(tmp_path: Path, units: tuple[str, ...]) -> None:
    name = described(tmp_path, *units, folders=(str(tmp_path),))
    (path,) = tmp_path.glob("*.json")
    spec = json.loads(path.read_text())
    cdi.check(spec, newest="0.5.0")
    assert cdi.edits_for(tmp_path, [name], newest="0.5.0")


def test_a_container_has_what_is_described_beside_what_it_had(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "process": {"env": ["PATH=/bin", "LD_PRELOAD=/its/own.so"]},
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
        "linux": {},
    }
    described(tmp_path, "another")
    cdi.apply(cdi.edits_for(tmp_path, [described(tmp_path, "a", folders=(str(tmp_path),))]), config)
    assert dict(pair.split("=", 1) for pair in config["process"]["env"]) == {"PATH": "/bin", **VARIABLES}
    (found,) = (each for each in config["mounts"] if each["type"] == "bind")
    assert (found["source"], found["destination"]) == (str(tmp_path), str(tmp_path))
    assert {"rw", "nosuid", "nodev"} <= set(found["options"])


def test_what_is_written_appears_whole_and_goes(tmp_path: Path) -> None:
    """A runtime reads the folder at any moment: what it can't read it can't give."""
    name = described(tmp_path, "a")
    described(tmp_path, "a")
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]
    CdiInjection(tmp_path).withdraw([place(["a"])])
    with pytest.raises(cdi.BadDescription, match="unresolvable CDI devices"):
        cdi.edits_for(tmp_path, [name])


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"cdiVersion": "0.6.0"}, "is not known"),
        ({"cdiVersion": "0.3.0"}, "needs version 0.5.0"),
        ({"kind": "part"}, "is no vendor/class"),
        ({"devices": []}, "describes no device"),
        ({"more": 1}, "which nobody knows"),
        ({"devices": [{"name": "0", "containerEdits": {}}]}, "changes nothing"),
        ({"devices": [{"name": "0", "containerEdits": {"env": ["A"]}}]}, "is no variable"),
        ({"devices": [{"name": "0", "containerEdits": {"hooks": [{"hookName": "x", "path": "/x"}]}}]}, "a hook"),
    ],
)
def test_the_reader_refuses_what_runtimes_refuse(changed: dict[str, Any], why: str) -> None:
    good = {"cdiVersion": "0.5.0", "kind": CDI_KIND, "devices": [{"name": "0", "containerEdits": {"env": ["A=1"]}}]}
    cdi.check(good, newest="0.5.0")
    with pytest.raises(cdi.BadDescription, match=why):
        cdi.check({**good, **changed}, newest="0.5.0")
