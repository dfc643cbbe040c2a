"""A pool of tests leaves no process behind, whatever its leases were served by when it ended."""

from __future__ import annotations

from pathlib import Path

from aliquot.client import LeaseState, Serve
from tests.client.real_pool import real_pool
from tests.polling import eventually
from tests.remote_serving.nodes import install


def working_in(folder: Path) -> list[int]:
    """The processes whose folder is in this one."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and str((entry / "cwd").readlink()).startswith(f"{folder}/"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_what_serves_a_lease_ends_with_its_pool(tmp_path: Path) -> None:
    settings = {"PYTHONPATH": str(install(tmp_path)), "ALIQUOT_AGENT_HOSTING_SERVICES": "all"}
    with real_pool(nodes=1, gpus=1, settings=settings) as local:
        with local.connect() as pool:
            lease = pool.allocate("0.25(A100),4Gi", serve=Serve.REMOTE, detached=True)
            eventually(lambda: pool.get(lease.lease_id).state is LeaseState.ACTIVE)
        assert working_in(local.layout.root)
    assert not working_in(local.layout.root)
