"""The agent's settings and defaults: by flags, variables (`ALIQUOT_AGENT_…`) or the `[agent]` table of a TOML file."""

from __future__ import annotations

import enum
import os
import pwd
from collections.abc import Collection
from pathlib import Path

import msgspec

from aliquot.common.duration import DurationMs
from aliquot.common.errors import ConfigError
from aliquot.common.tls import ClientTls, ServerTls

UID_END = (1 << 32) - 1
ENV_PREFIX = "ALIQUOT_AGENT_"
LIVE = frozenset({"log_level", "log_json"})
"""What SIGHUP changes without a restart; docs/operations.md lists them."""
DEFAULT_COORDINATOR = "127.0.0.1:7070"


def _default_state_dir() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/aliquot/agent")
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "aliquot" / "agent"


def _default_socket() -> Path:
    if os.geteuid() == 0:
        return Path("/run/aliquot/agent.sock")
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "aliquot" / "agent.sock" if base else _default_state_dir() / "agent.sock"


class ContainmentMode(enum.Enum):
    """How to follow a lease's processes."""

    AUTO = "auto"
    """By cgroup where that can be had, else by session and ancestry."""
    CGROUP = "cgroup"
    """By cgroup, or not at all: the agent refuses to start without."""
    PROCESS_GROUP = "process_group"


class TlsSettings(msgspec.Struct, frozen=True):
    """How to trust the coordinator and be trusted by it."""

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None

    def client(self) -> ClientTls | None:
        """None: in the clear."""
        if self.ca_file is None and self.certificate_file is None:
            return None
        return ClientTls(self.ca_file, self.certificate_file, self.key_file)

    def server(self) -> ServerTls | None:
        """For metrics that are served to others. None: in the clear."""
        if self.certificate_file is None or self.key_file is None:
            return None
        return ServerTls(self.certificate_file, self.key_file)


class PollSettings(msgspec.Struct, frozen=True):
    """How often devices are looked at."""

    memory: DurationMs = DurationMs(1_000)
    """Memory and processes of devices with leases: what the watchdog goes by."""
    idle: DurationMs = DurationMs(5_000)
    """The same of devices without."""
    load: DurationMs = DurationMs(5_000)
    health: DurationMs = DurationMs(30_000)
    calm: DurationMs = DurationMs(10_000)
    """How long all signs must have been good before an unhealthy device counts as healthy again."""
    discovery: DurationMs = DurationMs(300_000)
    timeout: DurationMs = DurationMs(5_000)
    """How long a call into the driver may take before its device counts as hung."""


class WatchdogSettings(msgspec.Struct, frozen=True):
    """What happens to processes that hold too much."""

    grace_max: DurationMs = DurationMs(5_000)
    """Between SIGTERM and SIGKILL for a process over its limit; a lease's own grace may be shorter."""
    over_max: DurationMs = DurationMs(1_500)
    """How long a lease may be over its limits within any minute, whoever of its processes held the memory. Then all of
    them are killed, also those whose grace has not passed; if others take too much after that, the lease ends.
    """
    stop_strays: bool = True
    """End processes of leases on devices where their lease has no slice; false: only report them."""


class EnforcementSettings(msgspec.Struct, frozen=True):
    """How slices are held to their limits."""

    tiers: tuple[str, ...] = ("mig", "driver", "preload", "watchdog")
    """Those this node may use. MPS is used where it is named."""
    directory: Path | None = None
    """Where tiers keep what the lease's processes load or connect to: readable by them, not mounted noexec.
    None: beside the state directory.
    """
    throttle: bool = True
    """Hold leases to their shares of a device's time while others want theirs, where the hardware can't."""


class MigSettings(msgspec.Struct, frozen=True):
    """Cards in MIG mode."""

    repartition: bool = False
    """Let the coordinator have idle parts of them cut anew, for requests that no part fits."""


class RepairSettings(msgspec.Struct, frozen=True):
    """What this agent may do about sick cards that nothing holds: the commands there are, as the coordinator orders.
    Without them cards wait for a person, or for their signs to go.
    """

    reset: tuple[str, ...] = ()
    """The command that resets one card, word by word: `{uuid}`, `{index}` and `{action}` are filled in."""
    reboot: tuple[str, ...] = ()
    """The command that restarts the machine."""
    restore: tuple[str, ...] = ()
    """Run after each reset, however that ended: puts back what it needed to be otherwise, such as persistence mode."""
    timeout: DurationMs = DurationMs(120_000)
    """Of each command."""
    verify: bool = True
    """Test cards in a process of their own, when the coordinator asks for it."""
    verify_timeout: DurationMs = DurationMs(90_000)
    verify_memory: int = 0
    """Bytes of a card's memory that are tested at most; 0: 95 % of it."""
    verify_dcgm: int = 1
    """The level at which `dcgmi diag` is run too, where it is installed (1 takes half a minute); 0: it is not."""


class HostingSettings(msgspec.Struct, frozen=True):
    """Processes that the agent starts for leases which are served."""

    user: str = "nobody"
    """Whom they all run as, by name or number, where the agent is root; else they run as the agent's user."""
    uids: str = ""
    """`FIRST-LAST`: numbers of users that nobody else has. Each member of a lease that is served then runs as one of
    its own, and can't reach others' processes and files.
    """
    services: tuple[str, ...] = ("all",)
    """By which installed services leases may be served here: names, `all`, or `none`."""
    advertise: str = ""
    """The host by which clients of served leases reach this node. Empty: its address on the way to the coordinator."""
    ports: str = ""
    """`FIRST-LAST`: where such services listen, one port for each member. Empty: on any free one."""
    ahead: bool = True
    """Whether a process waits for each service's next lease that has imported what it needs."""

    @property
    def users(self) -> Collection[int]:
        """Their numbers; empty: the agent's own user. Raises `ConfigError`."""
        if os.geteuid() != 0:
            return ()
        if self.uids:
            first, _, last = self.uids.partition("-")
            if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) < UID_END):
                raise ConfigError(f"hosting.uids {self.uids!r} is not FIRST-LAST", hint="write 300000-301023")
            return range(int(first), int(last) + 1)
        try:
            return (int(self.user) if self.user.isdecimal() else pwd.getpwnam(self.user).pw_uid,)
        except KeyError:
            raise ConfigError(f"hosting.user {self.user!r} is no user of this machine") from None


class Settings(msgspec.Struct, frozen=True):
    """All of an agent's settings."""

    coordinator: tuple[str, ...] = ()
    """host:port of each coordinator; the leader is found among them. Empty: those of the pool that the node has joined,
    else 127.0.0.1:7070.
    """
    state_dir: Path = msgspec.field(default_factory=_default_state_dir)
    socket: Path = msgspec.field(default_factory=_default_socket)
    metrics_host: str = "127.0.0.1"
    metrics_token_file: Path | None = None
    """Tokens that may read metrics; needed off loopback."""
    metrics_port: int = 9478
    """0 takes a free port, -1 serves no metrics."""
    dcgm_names: bool = False
    """Also serve the devices under the names of dcgm-exporter."""
    node_name: str = ""
    """Empty: the host's name."""
    node_id: str = ""
    """Empty: made once and kept in the state directory."""
    join_file: Path | None = None
    """What the node joins with by itself, as soon as it is there: what an operator's `aliquot node invite` printed, or
    the token of the service account of the agent's pod.
    """
    pool: str = ""
    failure_domain: str = ""
    label: tuple[str, ...] = ()
    """key=value, each."""
    devices: str = "auto"
    """Kinds of devices: `nvml`, `drm`, `ascend`, `gaudi`, `tpu`, several with commas between, or `auto`:
    those that show on this machine.
    """
    leave_out: tuple[str, ...] = ()
    """Devices that no lease gets: each by its UUID, its model, its number or its PCI address."""
    containment: ContainmentMode = ContainmentMode.AUTO
    cgroup_base: str = ""
    """A cgroup below which leases get theirs; empty: found."""
    log_level: str = "info"
    log_json: bool = False
    tls: TlsSettings = msgspec.field(default_factory=TlsSettings)
    poll: PollSettings = msgspec.field(default_factory=PollSettings)
    watchdog: WatchdogSettings = msgspec.field(default_factory=WatchdogSettings)
    enforcement: EnforcementSettings = msgspec.field(default_factory=EnforcementSettings)
    mig: MigSettings = msgspec.field(default_factory=MigSettings)
    hosting: HostingSettings = msgspec.field(default_factory=HostingSettings)
    repair: RepairSettings = msgspec.field(default_factory=RepairSettings)
    ignore_signals: tuple[str, ...] = ()
    """Causes of docs/health.md that take no card of this node out: an administrator knows better here."""
    kernel_log: str = "/dev/kmsg"
    """Where the kernel's log is read, which tells XIDs that NVML does not; empty: nowhere."""

    @property
    def enforcement_dir(self) -> Path:
        """Where the tiers' files are."""
        return self.enforcement.directory or self.state_dir.with_name(f"{self.state_dir.name}-enforcement")

    def labels(self) -> dict[str, str]:
        """The labels. Raises `ConfigError`."""
        found: dict[str, str] = {}
        for text in self.label:
            key, separator, value = text.partition("=")
            if not separator or not key:
                raise ConfigError(f"label {text!r} is not key=value", hint="write --label zone=a")
            found[key] = value
        return found
