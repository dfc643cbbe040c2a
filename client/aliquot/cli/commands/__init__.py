"""The commands that come with the CLI, in the order in which help lists them."""

from aliquot.cli._command import Command
from aliquot.cli.commands import (
    allocating,
    declaring,
    explaining,
    listing,
    live,
    nodes,
    pools,
    running,
    tenancy,
    watching,
)

BUILTINS: tuple[Command, ...] = (
    pools.UP,
    pools.DOWN,
    pools.DEMO,
    running.RUN,
    running.EXEC,
    allocating.ALLOC,
    allocating.RELEASE,
    allocating.ACK,
    listing.LS,
    listing.GET,
    explaining.WHY,
    live.TOP,
    watching.WATCH,
    listing.STATUS,
    nodes.NODES,
    nodes.CORDON,
    nodes.UNCORDON,
    nodes.DRAIN,
    nodes.FORGET,
    declaring.DECLARE,
    tenancy.APPLY,
    tenancy.TENANTS,
    tenancy.QUEUES,
    tenancy.INVOICE,
    tenancy.CREDIT,
)
