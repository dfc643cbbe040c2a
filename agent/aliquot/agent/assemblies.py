"""An agent in assemblies, each whole when it is constructed, and each made from those before it and from `parts`.

    Looking     what the devices and the machine tell
    Obeying     what the coordinator, and people on the node, want done

`agent.py` puts them together with what speaks to others. No decision is made here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from aliquot.agent.attaching import Attacher
from aliquot.agent.care import Care, Reopener
from aliquot.agent.connection import Coordinators
from aliquot.agent.controller import Controller
from aliquot.agent.core.kernel_log import bus_of
from aliquot.agent.core.signals import SIGNALS
from aliquot.agent.disk.log_mark import LogMark
from aliquot.agent.disk.membership import Membership
from aliquot.agent.driver_events import DriverEvents
from aliquot.agent.duties import DRIVER_EVENTS, KERNEL_LOG
from aliquot.agent.enforce.assembly import preloads
from aliquot.agent.partitions import Partitions
from aliquot.agent.parts import Following, Ground, Holding
from aliquot.agent.poller import Poller
from aliquot.agent.settings import DEFAULT_COORDINATOR, Settings
from aliquot.agent.state import NodeState
from aliquot.common.errors import ConfigError
from aliquot.common.tls import ClientTls, is_local_address

log = logging.getLogger(__name__)


class Looking:
    """What the devices and the machine tell: polls, the driver's events, the kernel's log."""

    def __init__(
        self, ground: Ground, following: Following, holding: Holding, observe_poll: Callable[[float], None]
    ) -> None:
        """`observe_poll` is told how long each poll took, in seconds. Raises `ConfigError` for signals there aren't."""
        settings, backend, state, world = ground.settings, ground.backend, ground.state, ground.world
        if settings.ignore_signals:
            ignored = ", ".join(settings.ignore_signals)
            state.note("ignored", f"by its settings these take no card out here: {ignored}")
        self.poller = Poller(ground, following, holding, observe_poll, _ignored(settings.ignore_signals))
        heard = DriverEvents(ground, holding.mailbox, self.poller, following.lease_of)
        self.events = world.make_events(backend, heard.take, partial(state.duties.tell, DRIVER_EVENTS))
        self.kernel_log = None
        if settings.kernel_log:
            self.kernel_log = world.make_kernel_log(
                Path(settings.kernel_log),
                partial(_card_at, state),
                heard.take,
                partial(state.duties.tell, KERNEL_LOG),
                LogMark(ground.checkpoint.record("log"), state.boot_id, world.records),
            )


class Obeying:
    """What the coordinator, and people on the node, want done: attaching, hosting, ending, cutting, repairing."""

    def __init__(self, ground: Ground, following: Following, holding: Holding, looking: Looking) -> None:
        """Made last, because all else goes on without it."""
        settings, state, world = ground.settings, ground.state, ground.world
        self.attacher = Attacher(
            containment=following.containment,
            attachments=following.attachments,
            limits=holding.limits,
            processes=world.processes,
            socket_path=str(settings.socket),
            visibility=ground.backend.visibility,
        )
        self.host = world.make_host(
            state=state,
            attacher=self.attacher,
            signaller=holding.signaller,
            directory=settings.enforcement_dir / "hosts",
            settings=settings.hosting,
            coordinators=lambda: coordinators(settings, world.read_member(settings.state_dir)).addresses,
            preloads=preloads(settings.enforcement.tiers, throttle=settings.enforcement.throttle),
        )
        self.controller = Controller(ground, following, holding, self.host, looking.poller)
        self.partitions = Partitions(ground, holding.mailbox, looking.poller.discover)
        self.care = Care(ground, holding.mailbox, looking.poller, looking.events)
        self.reopener = Reopener(looking.poller, self.care, settings.poll.health / 1000)


def coordinators(settings: Settings, member: Membership | None) -> Coordinators:
    """Where they are, and how to talk to them. What is set goes before what joining has brought."""
    addresses = settings.coordinator or (member.addresses if member is not None else ()) or (DEFAULT_COORDINATOR,)
    tls = settings.tls.client()
    if tls is None and member is not None and (member.trusted_pem or not all(map(is_local_address, addresses))):
        tls = ClientTls(ca_pem=member.trusted_pem)
    return Coordinators(addresses, tls, member)


def _card_at(state: NodeState, bus: str) -> str:
    """The card at an address on the bus, as the kernel's log names it; empty: none of ours."""
    for device in state.devices.values():
        if device.info.pci_bus_id and bus_of(device.info.pci_bus_id) == bus:
            return device.info.physical_uuid
    return ""


def _ignored(causes: Iterable[str]) -> frozenset[str]:
    """Raises `ConfigError` for a cause that there is not."""
    known = {signal.cause for signal in SIGNALS if signal.takes_out}
    for cause in causes:
        if cause not in known:
            raise ConfigError(
                f"ignore_signals: there is no signal {cause!r}", hint=f"one of {', '.join(sorted(known))}"
            )
    return frozenset(causes)
