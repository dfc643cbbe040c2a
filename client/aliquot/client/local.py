"""Talking to this node's agent over its Unix socket.

Each message is 4 bytes of length, big-endian, and a protobuf (`local.proto`). The agent checks who asks (SO_PEERCRED),
so every question has its own connection, which is never kept over a fork. `find_agents` finds the sockets; a machine
has more than one only when it runs a simulated pool.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError

from aliquot.client._errors import AgentError, AgentUnreachable, AttachRefused
from aliquot.client._from_proto import device_of
from aliquot.client._messages import read
from aliquot.client._values.nodes import Device
from aliquot.client._values.requests import Tier
from aliquot.common.limits import MAX_LOCAL_MESSAGE_BYTES
from aliquot.v1 import local_pb2

SOCKET_VARIABLE = "ALIQUOT_AGENT_SOCKET"
LOCAL_POOL = "pool"
"""Folder below `state_folder` where `aliquot up` keeps its pool."""
MACHINE_STATE = Path("/var/lib/aliquot/coordinator")
"""Where a coordinator that runs as a service keeps its state."""
ADMIN_TOKEN, ADMIN_SOCKET = "admin.token", "admin.sock"
"""In a folder of `access_folders`: the first administrator's token, and the socket that makes whoever gets in one."""
TIMEOUT_S = 10.0
_LENGTH = struct.Struct(">I")

# Variables of the program that the agent merges with its own. The rest of the environment is not sent.
_MERGED_PREFIXES = (
    "ALIQUOT_",
    "ASCEND_",
    "CUDA_",
    "CUPY_",
    "HIP_",
    "LD_",
    "NVIDIA_",
    "PYTORCH_",
    "ROCR_",
    "TF_",
    "XLA_",
    "ZE_",
)


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """What an agent says of itself."""

    node_id: str
    node_name: str
    agent_version: str
    coordinator: str
    connected: bool
    notes: tuple[str, ...]
    """What it can't do here, and why."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """A process that has become part of a lease."""

    environment: Mapping[str, str]
    """To set before the program starts."""
    slice_ids: tuple[str, ...]
    containment: str
    """CGROUP or PROCESS_GROUP: how descendants are followed."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CgroupAttachment:
    """A cgroup whose processes have become part of a lease. The limits are in force."""

    environment: Mapping[str, str]
    """What its processes must have set."""
    slice_ids: tuple[str, ...]
    folders: tuple[str, ...]
    """Needed by its processes at these paths, also where they have a file system of their own."""
    tier: Tier
    """The weakest of its slices."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LocalSlice:
    """A slice on this node, as its agent sees it."""

    slice_id: str
    lease_id: str
    tenant: str
    device_uuid: str
    share_milli: int
    memory_bytes: int
    observed_bytes: int | None
    pids: tuple[int, ...]
    tier: Tier
    status: str
    member: int = 0
    lease_epoch: int = 0
    cgroups: tuple[str, ...] = ()
    """Of others, that were attached to its member; named from the root of the hierarchy."""


@dataclass(frozen=True, slots=True)
class EnforcementAct:
    """One action of enforcement on a process, or one warning about a slice."""

    at_ms: int
    act: str
    """`warn`, `terminate`, `kill`, `reprieve`; of a lease as a whole `kill_all`, `end_lease`."""
    lease_id: str
    slice_id: str
    device_uuid: str
    pid: int
    """0: the slice as a whole."""
    why: str


@dataclass(frozen=True, slots=True)
class LocalStatus:
    """The slices and devices of this node, as its agent sees them."""

    slices: tuple[LocalSlice, ...]
    devices: tuple[Device, ...]
    acts: tuple[EnforcementAct, ...]
    """The recent ones, the latest last."""


class LocalAgent:
    """This node's agent behind one socket."""

    def __init__(self, path: Path, *, timeout_s: float = TIMEOUT_S) -> None:
        self.path = path
        self._timeout_s = timeout_s

    def info(self) -> AgentInfo:
        """Who it is. Raises `AgentUnreachable`."""
        answer = self._ask(local_pb2.LocalRequest(info=local_pb2.LocalInfoRequest())).info
        return read(answer, AgentInfo)

    def attach(
        self,
        lease_id: str,
        secret: str,
        *,
        pid: int = 0,
        member: int = 0,
        environment: Mapping[str, str] | None = None,
    ) -> Attachment:
        """Make a process (0: this one), and what it starts from now on, part of a lease.

        `environment` is what the process has set already; None: this process's own.
        Raises `AttachRefused`, `AgentUnreachable`.
        """
        own = os.environ if environment is None else environment
        request = local_pb2.AttachRequest(
            lease_id=lease_id,
            secret=secret,
            member=member,
            pid=pid,
            environment={name: text for name, text in own.items() if name.startswith(_MERGED_PREFIXES)},
        )
        answer = self._ask(local_pb2.LocalRequest(attach=request)).attach
        return read(answer, Attachment)

    def attach_cgroup(
        self,
        lease_id: str,
        cgroup: str,
        *,
        member: int = 0,
        uid: int = 0,
        environment: Mapping[str, str] | None = None,
    ) -> CgroupAttachment:
        """Make all processes of a cgroup that somebody else made part of a lease: a container's, a job's. `cgroup` is
        named from the root of the hierarchy. Only root may. No process is moved, and there need not be any yet.

        `uid`: the user of its processes; `environment`: what they have set already.
        Raises `AttachRefused`, `AgentUnreachable`.
        """
        request = local_pb2.AttachCgroupRequest(
            lease_id=lease_id, cgroup=cgroup, member=member, uid=uid, environment=dict(environment or {})
        )
        answer = self._ask(local_pb2.LocalRequest(attach_cgroup=request)).attach_cgroup
        return read(answer, CgroupAttachment)

    def detach(self, lease_id: str, secret: str) -> None:
        """Take this process out of a lease. Raises `AttachRefused`, `AgentUnreachable`."""
        self._ask(local_pb2.LocalRequest(detach=local_pb2.DetachRequest(lease_id=lease_id, secret=secret)))

    def status(self) -> LocalStatus:
        """The slices and devices of this node, and recent enforcement. Raises `AgentUnreachable`."""
        answer = self._ask(local_pb2.LocalRequest(status=local_pb2.LocalStatusRequest())).status
        return LocalStatus(
            slices=tuple(read(part, LocalSlice) for part in answer.slices),
            devices=tuple(map(device_of, answer.devices)),
            acts=tuple(read(act, EnforcementAct) for act in answer.acts),
        )

    def _ask(self, request: local_pb2.LocalRequest) -> local_pb2.LocalResponse:
        family = getattr(socket, "AF_UNIX", None)
        if family is None:
            raise AgentUnreachable(
                "agents run on Linux only, and none can be on this machine", hint="run this on a node of the lease"
            )
        try:
            with socket.socket(family, socket.SOCK_STREAM) as connection:
                connection.settimeout(self._timeout_s)
                connection.connect(str(self.path))
                body = request.SerializeToString()
                connection.sendall(_LENGTH.pack(len(body)) + body)
                answer = local_pb2.LocalResponse.FromString(_receive(connection))
        except OSError as error:
            raise AgentUnreachable(
                f"no agent answers at {self.path}: {error.strerror or error}",
                hint="start one with `aliquot up` or as a service, or name its socket in ALIQUOT_AGENT_SOCKET",
            ) from error
        except DecodeError as error:
            raise AgentError(
                f"what answered at {self.path} is not an agent", hint=f"look at {SOCKET_VARIABLE}"
            ) from error
        if answer.WhichOneof("response") == "error":
            said = answer.error
            raise AttachRefused(said.message, hint=said.hint, reason=said.reason)
        return answer


def find_agents(environ: Mapping[str, str] | None = None) -> tuple[LocalAgent, ...]:
    """Agents whose sockets exist: those named in `ALIQUOT_AGENT_SOCKET`, else those in the usual folders."""
    env = os.environ if environ is None else environ
    if named := env.get(SOCKET_VARIABLE):
        return tuple(LocalAgent(Path(text)) for text in named.split(os.pathsep) if text)
    found: list[LocalAgent] = []
    for folder in socket_folders(env):
        try:
            found.extend(LocalAgent(path) for path in sorted(folder.glob("*.sock")) if path.is_socket())
        except OSError:
            # This user can't use an agent whose folder it may not read.
            continue
    return tuple(found)


def socket_folders(env: Mapping[str, str]) -> Sequence[Path]:
    """Where agents put their sockets: the machine's, this user's, and those of this user's simulated pool."""
    folders = [Path("/run/aliquot")]
    if runtime := env.get("XDG_RUNTIME_DIR"):
        folders.append(Path(runtime) / "aliquot")
    state = state_folder(env)
    return (*folders, state / "agent", state / LOCAL_POOL / "run")


def access_folders(state: Path) -> Sequence[Path]:
    """Where a coordinator with its state there keeps its own secrets: its first administrator's token, its socket."""
    return [state / "access", *sorted(state.glob("*.access"))]


def state_folder(env: Mapping[str, str]) -> Path:
    """The folder for this user's durable state: `~/.local/state/aliquot`."""
    base = env.get("XDG_STATE_HOME") or str(Path(env.get("HOME") or "~").expanduser() / ".local" / "state")
    return Path(base) / "aliquot"


def _receive(connection: socket.socket) -> bytes:
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > MAX_LOCAL_MESSAGE_BYTES:
        raise OSError(f"a message of {length} bytes; at most {MAX_LOCAL_MESSAGE_BYTES} are read")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(count - len(parts))
        if not part:
            raise OSError("the connection ended in the middle of an answer")
        parts += part
    return bytes(parts)
