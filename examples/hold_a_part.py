#!/usr/bin/env python3
"""Hold a part of a GPU while a program runs in it.

aliquot up                                  # in another terminal, if you have no pool
python examples/hold_a_part.py "0.25(A100),8Gi" -- python train.py
"""

from __future__ import annotations

import sys

from aliquot.client import AliquotError, LeaseLost, NeverFits, Pool

USAGE = 'usage: hold_a_part.py "0.25(A100),8Gi" -- PROGRAM [ARGUMENT …]'


def main() -> int:
    """Ask, run, give back."""
    gpu, dashes, *program = [*sys.argv[1:], "", ""]
    if dashes != "--" or not program:
        sys.exit(USAGE)
    try:
        with Pool(tenant="examples") as pool, pool.lease(gpu, name="hold-a-part") as lease:
            for part in lease.slices:
                sys.stderr.write(f"{part.share_milli / 1000:g} of {part.device_model} on {part.node_name}\n")
            return lease.run(program).returncode
    except NeverFits as refusal:
        # The explanation lists device classes; `aliquot why` shows them as a table.
        changes = [missing.smallest_change for missing in (refusal.explanation.missing if refusal.explanation else ())]
        sys.exit(f"{refusal.message}\n  would fit: {'; '.join(filter(None, changes)) or 'nothing near'}")
    except LeaseLost as lost:
        sys.exit(f"the lease was taken away ({lost.end_reason}): {lost.hint}")
    except AliquotError as error:
        sys.exit(error.explain())


if __name__ == "__main__":
    sys.exit(main())
