"""A whole pool on this machine as child processes: a coordinator, and agents on simulated or real GPUs.

`aliquot up` keeps one for a user; `aliquot demo` breaks one for show. The parts are started as programs and never
imported: the client knows them by the contract and their command lines alone.
"""

from aliquot.cli.localpool.children import Child, ChildFailed
from aliquot.cli.localpool.layout import Layout
from aliquot.cli.localpool.pool import LocalNode, LocalPool, PoolPlan, answers, require_linux
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
    "require_linux",
]
