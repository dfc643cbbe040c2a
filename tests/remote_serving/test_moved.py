"""What programs elsewhere do with a lease is seen at the coordinator and on the screen, while it happens."""

from __future__ import annotations

import io

from rich.console import Console

from aliquot import remote
from aliquot.cli.top import screen, snapshot
from aliquot.client import Pool, ServedUse
from tests.polling import eventually


def test_what_is_moved_is_told_by_the_lease_and_shown_by_top(pool: Pool) -> None:
    with remote.acquire("2x0.25(A100),4Gi", connection=pool) as session:
        channel = session.open(engine="memory")
        channel.send(b"put a " + bytes(1 << 20 >> 1))
        channel.send(b"get a")
        assert len(channel.receive()) == 1 << 19
        sent, received = channel.figures()["bytes_up"], channel.figures()["bytes_down"]

        def told() -> ServedUse | None:
            lease = pool.get(session.lease_id)
            assert lease.slices[1].served is None, "of the member's first slice only"
            return lease.slices[0].served

        def all_of_it() -> bool:
            use = told()
            return use is not None and (use.up_bytes, use.down_bytes) == (sent, received)

        eventually(all_of_it)
        use = told()
        assert use is not None
        assert (use.sessions, use.ops, use.waits, use.memory_bytes) == (1, 7, 1, 1 << 19)
        console = Console(width=200, file=io.StringIO(), record=True)
        console.print(screen.draw(snapshot.take(pool)))
        (line,) = [line for line in console.export_text().splitlines() if "512Ki" in line]
        assert session.lease_id in line
        assert "512Ki / 8Gi" in line
