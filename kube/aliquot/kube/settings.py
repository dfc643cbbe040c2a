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
    scaling_host: str = "0.0.0.0"  # noqa: S104 - the API server and KEDA call it from elsewhere
    scaling_metrics_port: int = 8444
    """Of the metrics APIs, behind the API server."""
    scaling_keda_port: int = 8761
    """Of KEDA's external scaler; -1: none."""
    scaling_apis: tuple[str, ...] = ("custom.metrics.k8s.io",)
    """Which metrics APIs are served: that, and external.metrics.k8s.io, which is KEDA's own where there is KEDA."""
    scaling_service: str = "aliquot-scaling"
    """The Service of the metrics APIs, in this pod's namespace: APIServices that name another are somebody else's."""
    scaling_tls: Path = Path("/etc/aliquot/tls")
    """A folder with tls.crt, tls.key and ca.crt."""
    scaling_client_ca: Path | None = None
    """Whoever asks as KEDA shows a certificate of this authority."""
    scaling_clients: tuple[str, ...] = ()
    """Names of such certificates that count; none: all of that authority."""
    scaling_pool_readers: tuple[str, ...] = ("kube-system",)
    """Namespaces (`*` at will) whose ScaledObjects may ask for everybody's figures."""
    scaling_every: DurationMs = DurationMs(10_000)
    """How often the pool is asked."""
    scaling_kept: DurationMs = DurationMs(600_000)
    """For how long the last answer counts while the pool does not answer."""
    rules: tuple[AccountRule, ...] = ()
    """Who pays: the first that matches. None: each namespace is a tenant."""
    log_level: str = "info"
    log_json: bool = False
