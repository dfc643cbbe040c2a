"""A whole pool on this machine as child processes: a coordinator, and agents on simulated or real GPUs.

`aliquot up` runs one for a user; `aliquot demo` breaks one as a demonstration. The parts are started as programs and
never imported: the client knows only the contract and their command lines.
"""

from aliquot.cli.localpool.children import Child as Child
from aliquot.cli.localpool.children import ChildFailed as ChildFailed
from aliquot.cli.localpool.layout import Layout as Layout
from aliquot.cli.localpool.pool import LocalNode as LocalNode
from aliquot.cli.localpool.pool import LocalPool as LocalPool
from aliquot.cli.localpool.pool import PoolSetup as PoolSetup
from aliquot.cli.localpool.pool import answers as answers
from aliquot.cli.localpool.pool import require_pool as require_pool
from aliquot.cli.localpool.record import PoolRecord as PoolRecord
