"""A small pool that plays a script: production coordinators and agents in the simulated world, and the auditor.

> pool 2 of 1                       two nodes with one A100-40 each
> card                              one node more, with a card in MIG mode, cut into its smallest parts
> start                             the coordinators and agents start
> allocate NAME GPU [KEY=VALUE]     a launcher asks; its answer is awaited
> place NAME GPU NODE               somebody else has decided where
> fits GPU                          which nodes could take it?
> get NAME | release NAME | keepalive NAME
> wait SECONDS                      time passes
> crash leader | crash NODE         SIGKILL; whoever looks after it starts it again
> cut NODE | mend NODE              nothing gets through, and again it does
> slow NODE SECONDS                 whatever its agent does in threads takes so much longer
> cordon NODE | uncordon NODE | drain NODE
> tenant NAME [KEY=VALUE]           disruptions=1, limit=1 (devices of the pool's model), window=LIMIT@HH:MM-HH:MM,…
> links                           all links of all cards are up
> repairs                         agents may reset cards and restart machines, from their next start on
> ail NODE KIND | heal NODE       its first card is hot, has a link that is down (links), or its driver asks for a
                                    reset; and again it is well
> queue NAME [KEY=VALUE]            policy=slowdown, idle=lend, after=SECONDS, warn=SECONDS,SECONDS, placement=spread,
                                    pool=NAME
declared NAME placement=POLICY    a pool
within NODE POOL                  the node belongs to this pool
> work NAME PERCENT                 its program does so much (0: nothing), and is started where there is none
> quit NAME                         its programs end
> told NAME NUMBER                  somebody has delivered a warning of idleness
> exempt NAME SECONDS
> asleep NODE                       its machine is off at the start
> offer [KEY=VALUE]                 the sleeping machines: lead=5 target=10 idle=20 keep=20 rest=120 late=60 max=N at=1
> provider KIND                     honest, twice, late, never, fails or hangs: how machines are woken and put to sleep
> promise TENANT DEVICES            a guarantee
> extend NAME SECONDS              its time limit, in all
> maintain NODE SECONDS             in so many seconds a window opens; until then, only what ends before is placed
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

from aliquot.agent.core.samples import DeviceInfo, RecoveryAction
from aliquot.agent.local.peer import Peer
from aliquot.v1 import admin_pb2, leases_pb2, local_pb2, pool_pb2, supply_pb2, types_pb2
from tests.simulation.faults.rules_faults import wall
from tests.simulation.providers import Provider
from tests.simulation.sim.calls import CallFailed
from tests.simulation.sim.loop import US_PER_S
from tests.simulation.sim.machine import SimProc
from tests.simulation.sim.mig import SimCard
from tests.simulation.sim.nodes import REPAIRS, SimNode
from tests.simulation.sim.server import KEEP_ALIVE
from tests.simulation.sim.world import Config, World

GIB = 1 << 30
MODEL = "A100-40"
LEASES, POOL, ADMIN = "/aliquot.v1.LeaseService/", "/aliquot.v1.PoolService/", "/aliquot.v1.AdminService/"
SUPPLY = "/aliquot.v1.SupplyService/"
QUIET_US = US_PER_S // 2
"""After each command so much time passes, in which what follows from it happens."""
SMALLEST = tuple((0, start) for start in range(7))
"""Seven parts of the first profile."""


class Stage:
    """See the module's docstring. Use `playing` around `play`."""

    def __init__(self) -> None:
        self.world = World(1, Config(nodes=0, launchers=0), [])
        self.world.chances.seed(Random(2).getrandbits(64))
        self._leases: dict[str, str] = {}
        self._keys: dict[str, str] = {}
        self._secrets: dict[str, str] = {}
        self._programs: dict[str, list[SimProc]] = {}
        self._asleep: list[SimNode] = []
        self._provider: Provider | None = None
        self._launcher = self.world.loop.spawn("launcher")
        self._launcher.host = SimpleNamespace(host="launcher")

    @contextmanager
    def playing(self) -> Iterator[None]:
        """The simulated world stands in for the real one."""
        world = self.world
        with world.simulated():
            try:
                yield
            finally:
                world.loop.abandon()

    @property
    def violations(self) -> list[str]:
        """What is wrong, in the words of the auditor; what nobody caught, too."""
        errors = [f"an exception that nobody caught: {error}" for error in self.world.loop.errors]
        return [*self.world.auditor.violations, *errors]

    def play_all(self, script: str) -> list[str]:
        """Carry all commands of a script out, one on each line, until something is wrong. Returns what is."""
        with self.playing():
            for line in script.split("\n"):
                if line.strip() and not self.violations:
                    self.play(line.strip().removeprefix("> "))
            if not self.violations:
                self.world.auditor.look()
            return self.violations

    def play(self, command: str) -> None:
        """Carry a command out. Raises ValueError."""
        word, *rest = command.split()
        action: Callable[..., None] | None = getattr(self, f"_do_{word}", None)
        if action is None:
            raise ValueError(f"nothing is known of {word!r}")
        action(*rest)
        self._pass(QUIET_US)

    def _pass(self, us: int) -> None:
        loop = self.world.loop
        loop.run_until(loop.now_us + us, self.world.auditor.violations)

    def _attach(self) -> None:
        """Whoever listens begins to."""
        self.world.auditor.attach()

    def _tell(self, text: str) -> None:
        """What the launcher does and hears."""

    # -- commands

    def _do_pool(self, nodes: str, of: str, devices: str) -> None:
        for _ in range(int(nodes)):
            number = len(self.world.nodes)
            infos = [
                DeviceInfo(
                    uuid=f"GPU-{number:08x}-0000-4000-8000-{index:012x}",
                    index=index,
                    product_name="NVIDIA A100-SXM4-40GB",
                    model="A100-40",
                    vendor="nvidia",
                    memory_total_bytes=40 * GIB,
                    memory_reserved_bytes=GIB // 2,
                    pci_bus_id=f"00000000:{index:02X}:00.0",
                    fabric_island=0,
                )
                for index in range(int(devices))
            ]
            self._add_node(infos)

    def _do_card(self) -> None:
        node = self._add_node([])
        card = SimCard(node, 0, SMALLEST)
        node.cards[card.uuid] = card

    def _add_node(self, devices: list[DeviceInfo]) -> SimNode:
        world, number = self.world, len(self.world.nodes)
        addresses = world.cluster.addresses
        node = SimNode(
            world.loop,
            Random(number),
            world.table,
            world.network,
            number=number,
            coordinators=addresses,
            devices=devices,
        )
        world.add_node(node)
        return node

    def _do_start(self) -> None:
        world = self.world
        self._attach()
        world.cluster.start()
        self._pass(US_PER_S)
        for number, node in enumerate(world.nodes):
            world.loop.call_in(world.process, number * US_PER_S // 10, world.people.let_join, node)
        self._pass(US_PER_S)

    def _do_allocate(self, name: str, gpu: str, *said: str) -> None:
        words = dict(word.split("=", 1) for word in said)
        self._keys.setdefault(name, words.pop("key", name))
        wait = leases_pb2.WaitUntil.Value(f"WAIT_UNTIL_{words.pop('until', 'active').upper()}")
        call = leases_pb2.AllocateRequest(
            request=_request(gpu, words), idempotency_key=self._keys[name], wait_until=wait, wait_timeout_ms=3_000
        )
        data = self._call(LEASES, "Allocate", call)
        if data is not None:
            lease = leases_pb2.AllocateResponse.FromString(data).lease
            self._leases[name], self._secrets[name] = lease.lease_id, lease.secret

    def _do_trespass(self, name: str, tenant: str, queue: str) -> None:
        """Ask in a queue that is another's, which is to be refused as a wrong request is."""
        request = types_pb2.LeaseRequest(gpu="1", tenant=tenant, queue=queue, ttl_s=60)
        call = leases_pb2.AllocateRequest(request=request, idempotency_key=name, wait_timeout_ms=0)
        call.wait_until = leases_pb2.WAIT_UNTIL_QUEUED
        self._call(LEASES, "Allocate", call, refused=True)

    def _do_place(self, name: str, gpu: str, node: str, *said: str) -> None:
        request = _request(gpu, {"ttl": "0", **dict(word.split("=", 1) for word in said)})
        places = [leases_pb2.MemberPlace(node_id=node)]
        call = leases_pb2.GrantOnRequest(request=request, idempotency_key=name, places=places, wait_timeout_ms=3_000)
        call.wait_until = leases_pb2.WAIT_UNTIL_ACTIVE
        data = self._call(LEASES, "GrantOn", call)
        if data is not None:
            self._leases[name] = leases_pb2.AllocateResponse.FromString(data).lease.lease_id

    def _do_fits(self, gpu: str) -> None:
        self._call(POOL, "Fits", pool_pb2.FitsRequest(request=types_pb2.LeaseRequest(gpu=gpu, tenant="dev")))

    def _do_get(self, name: str) -> None:
        self._call(LEASES, "Get", leases_pb2.GetRequest(lease_id=self._leases[name]))

    def _do_release(self, name: str) -> None:
        request = leases_pb2.ReleaseRequest(lease_id=self._leases[name], wait_gone=True, wait_timeout_ms=3_000)
        self._call(LEASES, "Release", request)

    def _do_keepalive(self, name: str) -> None:
        world = self.world
        connection = world.network.connect("launcher", world.cluster.leader.host, KEEP_ALIVE, self._launcher)
        if connection is None:
            self._tell("nobody answers")
            return
        request = leases_pb2.KeepAliveRequest(lease_ids=[self._leases[name]])
        world.loop.start(self._launcher, connection.client_write(request.SerializeToString()), "keeps alive")
        self._pass(QUIET_US)
        connection.client_cancel()

    def _do_wait(self, seconds: str) -> None:
        left_us = int(float(seconds) * US_PER_S)
        while self._provider is not None and left_us > 0 and not self.violations:
            self._pass(min(left_us, 5 * US_PER_S))
            left_us -= 5 * US_PER_S
            self._provider.look()
        if self._provider is None:
            self._pass(left_us)

    def _do_asleep(self, name: str) -> None:
        node = self._node(name)
        node.powered = False
        self._asleep.append(node)

    def _do_offer(self, *said: str) -> None:
        words = {"lead": "5", "target": "10", "idle": "20", "keep": "20", "rest": "120", "late": "60", "at": "1"}
        words |= dict(word.split("=", 1) for word in said)
        machines = [node.node_name for node in self._asleep]
        shape = supply_pb2.NodeShape(
            name="metal",
            model=MODEL,
            devices=max(len(node.devices) for node in self._asleep),
            nodes_max=int(words.get("max", len(machines))),
            lead_s=int(words["lead"]),
            machines=machines,
        )
        policy = supply_pb2.SupplyPolicy(
            act=words["at"] == "1",
            target_wait_s=int(words["target"]),
            idle_s=int(words["idle"]),
            keep_s=int(words["keep"]),
            rest_s=int(words["rest"]),
            late_s=int(words["late"]),
            headroom_permille=0,
            ready_permille=int(words.get("ready", "0")),
        )
        spec = supply_pb2.SupplySpec(shapes=[shape], policy=policy)
        self._call(SUPPLY, "DeclareSupply", supply_pb2.DeclareSupplyRequest(spec=spec))

    def _do_provider(self, kind: str) -> None:
        if self._provider is None:
            self._provider = Provider(self.world, self._asleep, self._ask_supply)
        self._provider.kind = kind

    def _ask_supply(self, method: str, request: Any) -> bytes | None:
        return self._call(SUPPLY, method, request)

    def _do_promise(self, tenant: str, devices: str) -> None:
        spec = admin_pb2.TenantSpec(name=tenant)
        spec.quota.guaranteed.share_milli = int(devices) * 1000
        request = admin_pb2.ApplyRequest()
        request.tenants.add(spec=spec)
        self._call(ADMIN, "Apply", request)

    def _do_crash(self, who: str) -> None:
        if who == "leader":
            self.world.cluster.leader.crash()
        else:
            self._node(who).crash_agent()

    def _do_cut(self, node: str) -> None:
        self.world.network.block(node, "*")
        self.world.network.block("*", node)

    def _do_mend(self, node: str) -> None:
        self.world.network.unblock(node, "*")
        self.world.network.unblock("*", node)

    def _do_cordon(self, node: str) -> None:
        self._call(POOL, "Cordon", pool_pb2.CordonRequest(node_id=node))

    def _do_uncordon(self, node: str) -> None:
        self._call(POOL, "Uncordon", pool_pb2.UncordonRequest(node_id=node))

    def _do_drain(self, node: str) -> None:
        self._call(POOL, "Drain", pool_pb2.DrainRequest(node_id=node))

    def _do_slow(self, node: str, seconds: str) -> None:
        process = self._node(node).process
        assert process is not None, f"the agent of {node} has not been started"
        process.stalls_us = int(float(seconds) * US_PER_S)

    def _do_tenant(self, name: str, *said: str) -> None:
        words = dict(word.split("=", 1) for word in said)
        spec = admin_pb2.TenantSpec(name=name, disruptions_max=int(words.pop("disruptions", "0")))
        if "limit" in words:
            limit = admin_pb2.Amount(share_milli=int(words.pop("limit")) * 1000)
            spec.quota.models.add(model=MODEL, limit=limit)
        if "priority_max" in words:
            spec.priority_max = int(words.pop("priority_max"))
        spec.default_queue = words.pop("queue", "")
        if "waiting_max" in words:
            spec.waiting_max = int(words.pop("waiting_max"))
        for window in filter(None, words.pop("window", "").split(",")):
            devices, _, when = window.partition("@")
            spec.quota.windows.add(when=when.replace("_", " "), limit=admin_pb2.Amount(share_milli=int(devices) * 1000))
        if words:
            raise ValueError(f"nothing is known of {', '.join(words)}")
        request = admin_pb2.ApplyRequest()
        request.tenants.add(spec=spec)
        self._call(ADMIN, "Apply", request)

    def _do_give(self, tenant: str, queue: str) -> None:
        """Declare a queue as a tenant's own, which is to be refused where it is another's."""
        request = admin_pb2.ApplyRequest()
        request.tenants.add(spec=admin_pb2.TenantSpec(name=tenant, default_queue=queue))
        self._call(ADMIN, "Apply", request, refused=True)

    def _do_repairs(self) -> None:
        for node in self.world.nodes:
            node.repairs_with(REPAIRS)

    def _do_links(self) -> None:
        for node in self.world.nodes:
            for device in node.devices.values():
                device.sample["links_up"] = 12

    def _do_ail(self, name: str, kind: str) -> None:
        device = next(iter(self._node(name).devices.values()))
        if kind == "hot":
            device.sample["margin_c"] = 0
        elif kind == "links":
            device.sample["links_up"] = 11
        else:
            device.recovery = RecoveryAction.RESET

    def _do_heal(self, name: str) -> None:
        device = next(iter(self._node(name).devices.values()))
        device.sample["margin_c"], device.recovery = 30, RecoveryAction.NONE
        if "links_up" in device.sample:
            device.sample["links_up"] = 12

    def _do_queue(self, name: str, *said: str) -> None:
        words = dict(word.split("=", 1) for word in said)
        spec = admin_pb2.QueueSpec(name=name, policy=words.get("policy", ""), pool=words.get("pool", ""))
        spec.placement = words.get("placement", "")
        if "idle" in words:
            spec.idle.action, spec.idle.after_s = words["idle"], int(words["after"])
            spec.idle.warn_s.extend(int(number) for number in words.get("warn", "").split(",") if number)
            spec.idle.never_warn = not spec.idle.warn_s
        request = admin_pb2.ApplyRequest()
        request.queues.add(spec=spec)
        self._call(ADMIN, "Apply", request)

    def _do_within(self, name: str, pool: str) -> None:
        node = self._node(name)
        declared = types_pb2.Node(node_id=node.node_id, name=node.node_name, pool=pool)
        self._call(POOL, "DeclareNodes", pool_pb2.DeclareNodesRequest(nodes=[declared]))

    def _do_declared(self, name: str, placement: str) -> None:
        request = admin_pb2.ApplyRequest()
        request.pools.add(spec=admin_pb2.PoolSpec(name=name, placement=placement.removeprefix("placement=")))
        self._call(ADMIN, "Apply", request)

    def _do_work(self, name: str, percent: str) -> None:
        if not any(proc.alive for proc in self._programs.get(name, ())):
            self._start(name)
        for proc in self._programs[name]:
            proc.busy_percent = int(percent)

    def _start(self, name: str) -> None:
        """A program on each node of a lease, as its launcher would start it; it holds what the lease may hold."""
        self._programs[name] = []
        data = self._call(LEASES, "Get", leases_pb2.GetRequest(lease_id=self._leases[name]))
        assert data is not None
        lease = types_pb2.Lease.FromString(data)
        for member in sorted({piece.member for piece in lease.slices}):
            pieces = [piece for piece in lease.slices if piece.member == member]
            node = next(node for node in self.world.nodes if node.node_id == pieces[0].node_id)
            proc = node.start()
            asked = local_pb2.AttachRequest(lease_id=lease.lease_id, secret=self._secrets[name], member=member)
            proc.lease_id, proc.member = lease.lease_id, member
            assert node.process is not None
            assert node.local is not None
            self.world.loop.start(node.process, node.local.attach(Peer(proc.key, 1000, 1000), asked), "attach")
            self._pass(QUIET_US)
            for piece in pieces:
                node.allocate(proc, piece.device_uuid, piece.memory_bytes // 2)
            self._programs[name].append(proc)

    def _do_quit(self, name: str) -> None:
        for proc in self._programs.pop(name, ()):
            if proc.alive:
                next(node for node in self.world.nodes if proc.machine is node).exit(proc)

    def _do_told(self, name: str, number: str) -> None:
        request = leases_pb2.ConfirmNoticeRequest(lease_id=self._leases[name], number=int(number))
        self._call(LEASES, "ConfirmNotice", request)

    def _do_exempt(self, name: str, seconds: str) -> None:
        request = leases_pb2.ExemptLeaseRequest(lease_id=self._leases[name], for_s=int(seconds))
        self._call(LEASES, "ExemptLease", request)

    def _do_extend(self, name: str, seconds: str) -> None:
        request = leases_pb2.ExtendLeaseRequest(lease_id=self._leases[name], time_limit_s=int(seconds))
        self._call(LEASES, "ExtendLease", request)

    def _do_maintain(self, node: str, seconds: str) -> None:
        start_s = self.world.auditor.books.at_ms // 1000 + int(seconds)
        window = admin_pb2.MaintenanceWindow(
            name="window", start=wall(start_s), end=wall(start_s + 60), lead_s=3600, node_ids=[node]
        )
        self._call(ADMIN, "DeclareMaintenance", admin_pb2.DeclareMaintenanceRequest(window=window))

    def _node(self, name: str) -> SimNode:
        node = self.world.node(name)
        if node is None:
            raise ValueError(f"there is no {name}")
        return node

    def _call(self, service: str, method: str, request: Any, *, refused: bool = False) -> bytes | None:
        """One call to whoever leads, and its answer; None where it failed. `refused`: it may be one that is wrong."""
        answers: list[bytes | None] = []

        async def call() -> None:
            address = self.world.cluster.leader.host
            try:
                answers.append(
                    await self.world.network.call(
                        "launcher", address, service + method, request.SerializeToString(), 5.0
                    )
                )
            except CallFailed as failed:
                answers.append(None)
                assert refused or failed.code.name != "INVALID_ARGUMENT", failed  # the script is wrong
                if failed.code.name == "UNAVAILABLE":
                    self._tell(f"launcher hears of {method}: {failed}")

        self._tell(f"launcher calls {method}")
        self.world.loop.start(self._launcher, call(), method)
        while not answers and not self.violations:
            self._pass(US_PER_S // 10)
        return answers[0] if answers else None


def _request(gpu: str, words: dict[str, str]) -> types_pb2.LeaseRequest:
    """A request of a script. Raises ValueError."""
    request = types_pb2.LeaseRequest(gpu=gpu, tenant=words.pop("tenant", "dev"), ttl_s=int(words.pop("ttl", "60")))
    request.no_queue = words.pop("queue", "yes") == "no"
    request.gang_size = int(words.pop("gang", "1"))
    request.priority, request.preemptible = int(words.pop("priority", "0")), words.pop("preemptible", "no") == "yes"
    request.opportunistic, request.queue = words.pop("opportunistic", "no") == "yes", words.pop("in", "")
    request.time_limit_s, request.grace_s = int(words.pop("limit", "0")), int(words.pop("grace", "0"))
    request.movable, request.or_mig = words.pop("movable", "no") == "yes", words.pop("ormig", "no") == "yes"
    request.min_count, request.max_count = int(words.pop("least", "0")), int(words.pop("most", "0"))
    request.labels.update({"workload-type": words.pop("workload")} if "workload" in words else {})
    request.same_card = words.pop("samecard", "no") == "yes"
    if words:
        raise ValueError(f"nothing is known of {', '.join(words)}")
    return request
