#!/usr/bin/env python3
"""Say what fits right now, and follow changes.

python examples/free_parts.py            # what fits, by size
python examples/free_parts.py --watch    # and every change, until Ctrl-C
"""

from __future__ import annotations

import contextlib
import sys

from aliquot.client import LeaseChanged, NodeChanged, Pool

SIZES = ("0.1", "0.25", "0.5", "1", "2", "4", "8")


def main() -> None:
    """Explain makes the same decision as Allocate, and changes nothing."""
    with Pool(tenant="examples") as pool:
        for size in SIZES:
            explanation = pool.explain(size)
            where = ", ".join(sorted({part.node_name for part in explanation.placement}))
            sys.stdout.write(f"{size:>5}  {'on ' + where if explanation.fits_now else explanation.summary}\n")
        if "--watch" not in sys.argv:
            return
        with contextlib.suppress(KeyboardInterrupt):
            for event in pool.watch(nodes=True):
                if isinstance(event, LeaseChanged):
                    sys.stdout.write(f"{event.lease.lease_id}  {event.lease.gpu}  {event.lease.state.lower()}\n")
                elif isinstance(event, NodeChanged):
                    sys.stdout.write(f"{event.node.name}  {event.node.state.lower()}\n")


if __name__ == "__main__":
    main()
