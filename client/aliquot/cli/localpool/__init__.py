"""A whole pool on this machine as child processes: a coordinator, and agents on simulated or real GPUs.

`aliquot up` runs one for a user; `aliquot demo` breaks one as a demonstration. The parts are started as programs and
never imported: the client knows only the contract and their command lines.
"""

from aliquot.cli.localpool.children import Child, ChildFailed
from aliquot.cli.localpool.layout import Layout
from aliquot.cli.localpool.pool import LocalNode, LocalPool, PoolPlan, answers, require_pool
from aliquot.cli.localpool.record import PoolRecord

__all__ = [
    "Child",
    "ChildFailed",
    "Layout",
    "LocalNode",
    "LocalPool",
    "PoolPlan",
    "PoolRecord",
    "answers",
    "require_pool",
]
