"""Two pools with two policies on real agents: serving is spread, training packed, as a file of `aliquot apply` says."""

from __future__ import annotations

from pathlib import Path

from aliquot.cli._poolfile import read_pool_file
from aliquot.client import NodeDeclaration
from tests.client.real_pool import real_pool

FILE = """
pools:
  - {name: prod, placement: spread}
  - {name: lab}
queues:
  - {name: serving, pool: prod}
  - {name: training, pool: lab, placement: binpack}
  - {name: whatever, pool: lab, placement: workload}
"""


def test_two_pools_place_by_policies_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text(FILE)
    with (
        real_pool(nodes=4, gpus=2, coordinator='[coordinator]\npolicy = "binpack"\n') as local,
        local.connect() as pool,
    ):
        pool.declare(
            NodeDeclaration(node.name, node_id=node.node_id, pool="prod" if number < 2 else "lab")
            for number, node in enumerate(pool.nodes())
        )
        pool.admin.apply(read_pool_file(file))

        def on(number: int, queue: str, **said: str) -> set[tuple[str, str]]:
            leases = [pool.allocate("0.25", queue=queue, labels=said, ttl_s=0) for _ in range(number)]
            return {(part.node_name, part.device_uuid) for lease in leases for part in lease.slices}

        spread = on(4, "serving")
        assert len(spread) == 4
        assert {len([1 for node, _ in spread if node == each]) for each, _ in spread} == {2}
        assert len(on(4, "training")) == 1
        assert len(on(2, "whatever", **{"workload-type": "inference"})) == 2
        assert len(on(2, "whatever", **{"workload-type": "training"})) == 1
        assert {queue.spec.placement for queue in pool.admin.tenancy().queues} >= {"binpack", "workload"}
