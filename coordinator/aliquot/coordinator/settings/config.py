"""The coordinator's settings: a TOML file, the environment (`ALIQUOT_COORDINATOR_…`), flags; later ones win."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from aliquot.common.duration import DurationMs
from aliquot.common.tls import ServerTls, server_tls
from aliquot.coordinator.agents.liveness import SessionsConfig
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.logins.config import OidcSettings, PodSettings
from aliquot.coordinator.reading.watch import RING_EVENTS
from aliquot.coordinator.rpc.rates import CallerBounds
from aliquot.coordinator.writing.interfaces import WriterConfig

ENV_PREFIX = "ALIQUOT_COORDINATOR_"
LIVE = frozenset(
    {
        "log_level",
        "log_json",
        "access.burst",
        "access.requests_per_s",
        "access.streams_max",
        "agents.idle_window",
        "agents.use_looked_at_every",
        "agents.use_told_every",
        "elastic.idle",
        "elastic.rest",
        "limits.commands_queued_max",
        "limits.commands_wait_max",
        "limits.requests_queued_max",
        "mig.patience",
        "mig.rest",
    }
)
"""What SIGHUP may change at once, as earlier decisions do not depend on it; docs/operations.md lists them."""


def default_journal() -> str:
    """Where the journal is when nobody says: the system's place for root, else the user's."""
    if os.geteuid() == 0:
        return "sqlite:/var/lib/aliquot/coordinator/coordinator.db"
    return f"sqlite:{_users_state() / 'aliquot' / 'coordinator.db'}"


def _users_state() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """PEM files; see `aliquot.common.tls`."""

    certificate_file: Path | None = None
    key_file: Path | None = None
    client_ca_file: Path | None = None

    def server_tls(self) -> ServerTls | None:
        """None: no TLS is set up. Raises ConfigError for half a pair."""
        return server_tls(self.certificate_file, self.key_file, self.client_ca_file)


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """Where the coordinator keeps its own secrets, and how others know it."""

    dir: Path | None = None
    """A folder that only the service enters. None: beside the SQLite journal, its name and `.access`; else `access` in
    `$STATE_DIRECTORY` or in the user's own.
    """
    admin_token_file: Path | None = None
    """A token that counts as an administrator's, supplied from outside: a Kubernetes secret."""
    names: tuple[str, ...] = ()
    """Names and addresses by which others reach this coordinator, beside those it finds itself: for its certificate."""
    oidc: OidcSettings = field(default_factory=OidcSettings)
    pods: PodSettings = field(default_factory=PodSettings)
    requests_per_s: int = 25_000
    """Calls that one principal may make, each item of a batch one; 0: any number. Keep-alives don't count."""
    burst: int = 50_000
    """So many at once, after a pause."""
    streams_max: int = 5_000
    """Watches and calls that wait, of one principal at a time; 0: any number. Keep-alives don't count."""

    def bounds(self) -> CallerBounds:
        """What one principal may have."""
        return CallerBounds(self.requests_per_s, self.burst, self.streams_max)


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """How often agents speak, and when they count as silent."""

    heartbeat: DurationMs = field(default=DurationMs(5_000))
    delta_min: DurationMs = field(default=DurationMs(1_000))
    suspect_after_heartbeats: int = 3
    lost: DurationMs = field(default=DurationMs(30_000))
    confirm_timeout: DurationMs = field(default=DurationMs(30_000))
    """A grant that its agent has not confirmed for so long is tried elsewhere."""
    use_told_every: DurationMs = field(default=DurationMs(300_000))
    """How often the ledger is told what leases were measured to use."""
    use_looked_at_every: DurationMs = field(default=DurationMs(60_000))
    """How often all leases are looked at for idleness."""
    idle_window: DurationMs = field(default=DurationMs(600_000))
    """A lease is idle once nothing was done with it for so long."""

    def sessions(self) -> SessionsConfig:
        """As the sessions take them."""
        return SessionsConfig(self.heartbeat, self.delta_min, self.suspect_after_heartbeats, self.lost)


@dataclass(frozen=True, slots=True)
class MigSettings:
    """When cards in MIG mode are cut anew, on nodes whose agents allow it."""

    patience: DurationMs = field(default=DurationMs(10_000))
    """How long a request must have waited."""
    rest: DurationMs = field(default=DurationMs(60_000))
    """How long a card is left alone after a cut."""


@dataclass(frozen=True, slots=True)
class ElasticSettings:
    """When elastic leases grow."""

    idle: DurationMs = field(default=DurationMs(5_000))
    """How long capacity must have been on offer."""
    rest: DurationMs = field(default=DurationMs(30_000))
    """How long a lease does not grow after its last change."""


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """Where traces of leases are sent."""

    endpoint: str = ""
    """OTLP over HTTP, such as `http://collector:4318/v1/traces`; empty: nowhere. Needs the extra `tracing`."""


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """Bounds; see `CoreConfig` and `WriterConfig`."""

    commands_queued_max: int = 20_000
    commands_wait_max: DurationMs = field(default=DurationMs(2_000))
    """While commands wait longer than this to be decided, new requests are sent away with a time to come back."""
    requests_queued_max: int = 200_000
    retain_ended: DurationMs = field(default=DurationMs(600_000))
    retain_ended_max: int = 100_000
    watch_events: int = RING_EVENTS
    """Changes that are remembered for watchers who come late or fall behind; about 1 kB each."""
    ledger_entries_max: int = 20_000
    """So many entries of usage are kept one by one, half a kB each; older ones become sums by the hour."""
    strict_tenants: bool | None = None
    """Refuse tenants and queues that were not declared; not set: where any tenant (any queue) is declared."""
    ledger_days: int = 62
    """Usage older than this many whole days (UTC) is kept as sums by the day; 0: never."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All of them."""

    listen: str = "127.0.0.1:7070"
    journal: str = field(default_factory=default_journal)
    """`sqlite:PATH`; `postgres:CONNINFO`, shared by several coordinators of which one leads; or `memory:`, which
    forgets all leases when the coordinator ends, and grows with each of them.
    """
    advertise: str = ""
    """`host:port` at which others reach this coordinator while it leads; by default what it listens on."""
    leader_expiry: DurationMs = field(default=DurationMs(3_000))
    """How long after its last renewal the leader row of a shared journal is free for another."""
    clock_skew_max: DurationMs = field(default=DurationMs(30_000))
    """With a clock further than this from the database's this coordinator does not lead; where it is alone, it does not
    move time by a clock further from most agents'. 0: clocks are not compared.
    """
    metrics_port: int = 7071
    """0 takes a free one; -1 serves no metrics."""
    metrics_host: str = "127.0.0.1"
    metrics_token_file: Path | None = None
    """Tokens that may read metrics, beside those of roles that may. Off loopback nobody else does."""
    policy: str = "price"
    """How leases are placed; docs/placement.md describes each."""
    forecast: bool = False
    """Take down demand by the hour, and forecast it and the starts of what waits, in processes of their own."""
    log_level: str = "info"
    log_json: bool = False
    snapshot_every_facts: int = 200_000
    backup_within: DurationMs = field(default=DurationMs(0))
    """An SQLite journal that was not backed up (`aliquot journal backup`) for so long is told of: the duty `backup`. 0:
    nobody expects backups.
    """
    fsync_delay_ms: int = 0
    """Makes every commit as slow as a slow disk: for measurements only."""
    tls: TlsSettings = TlsSettings()
    access: AccessSettings = AccessSettings()
    agents: AgentSettings = AgentSettings()
    limits: LimitSettings = LimitSettings()
    mig: MigSettings = MigSettings()
    elastic: ElasticSettings = ElasticSettings()
    tracing: TracingSettings = TracingSettings()

    def access_dir(self) -> Path:
        """Where the coordinator keeps its own secrets. It is not made here."""
        if self.access.dir is not None:
            return self.access.dir.expanduser()
        kind, _, place = self.journal.partition(":")
        if kind == "sqlite" and place:
            return Path(f"{Path(place).expanduser()}.access")
        if kind == "memory":  # it forgets its callers too
            import tempfile  # noqa: PLC0415 - as in `common.tls`

            return Path(tempfile.gettempdir()) / f"aliquot-{os.getuid()}-{os.getpid()}"
        if state := os.environ.get("STATE_DIRECTORY", "").partition(":")[0]:
            return Path(state) / "access"
        return _users_state() / "aliquot" / "access"

    def core(self) -> CoreConfig:
        """What decisions depend on."""
        return CoreConfig(
            policy=self.policy,
            confirm_timeout_ms=self.agents.confirm_timeout,
            idle_window_ms=self.agents.idle_window,
            queued_max=self.limits.requests_queued_max,
            cut_patience_ms=self.mig.patience,
            cut_rest_ms=self.mig.rest,
            growth_idle_ms=self.elastic.idle,
            growth_rest_ms=self.elastic.rest,
            retain_ended_ms=self.limits.retain_ended,
            retain_ended_max=self.limits.retain_ended_max,
            ledger_entries_max=self.limits.ledger_entries_max,
            strict_tenants=self.limits.strict_tenants,
        )

    def writer(self) -> WriterConfig:
        """Bounds of the writer."""
        return WriterConfig(queue_max=self.limits.commands_queued_max, wait_max_ms=self.limits.commands_wait_max)
