"""Settings of our processes in a cluster: defaults, a TOML file's table `[kube]`, `ALIQUOT_KUBE_…`, flags.

Where the coordinator is, and the token, come from the client's own settings (`ALIQUOT_COORDINATOR`,
`ALIQUOT_TOKEN_FILE`, docs/access.md): in a pod, a projected token of the service account.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from aliquot.common.duration import DurationMs
from aliquot.kube.core.accounts import AccountRule
from aliquot.kube.core.names import SCHEDULER

ENV_PREFIX: Final = "ALIQUOT_KUBE_"
TABLE: Final = "kube"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The `[kube]` table."""

    cluster: str = ""
    """Names this cluster among those that share the pool; empty: the uid of its namespace kube-system."""
    scheduler: str = SCHEDULER
    """`schedulerName` of our pods."""
    listen_host: str = "127.0.0.1"
    listen_port: int = 8760
    """Of the extender. Its scheduler is on the same machine: whoever reaches this can bind pods."""
    webhook_host: str = "0.0.0.0"  # noqa: S104 - the API server calls it from elsewhere
    webhook_port: int = 8443
    webhook_tls: Path = Path("/etc/aliquot/tls")
    """A folder with tls.crt, tls.key and ca.crt, where `webhook_service` is empty."""
    webhook_service: str = ""
    """The webhook's Service: it makes its certificate itself then, in the Secret `NAME-tls`, and renews it."""
    namespace: str = ""
    """Where the controllers' Lease is; empty: this pod's own."""
    kubeconfig: str = ""
    unbound: DurationMs = DurationMs(60_000)
    """How long a lease may be without its pod being bound."""
    gang_wait: DurationMs = DurationMs(300_000)
    """How long a gang's lease may be without all members being bound."""
    silence: DurationMs = DurationMs(55_000)
    """For how long nothing may be heard of the API server."""
    remote_pods: bool = False
    """Whether pods may have GPUs of other machines by annotation: the controllers then write Secrets."""
    replica_percent: int = 0
    """What a time-sliced replica (`nvidia.com/gpu.shared`) is of a card where pods in other words become ours; 0: such
    pods are left as they are.
    """
    rules: tuple[AccountRule, ...] = ()
    """Who pays: the first that matches. None: each namespace is a tenant."""
    alive_file: str = ""
    """Touched every ten seconds while the process's loop turns, for a probe; empty: none."""
    log_level: str = "info"
    log_json: bool = False
