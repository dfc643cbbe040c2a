"""Where the API server is and who we are to it: in a pod the service account, else what `kubectl` uses.

Kubeconfig files, with their many ways to log in, are read by the `kubernetes` package; it is imported only then,
because it costs a hundred MiB, which what runs in the cluster saves.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aliquot.common.errors import ConfigError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_KEPT_S: Final = 60.0
"""A projected token: the kubelet replaces its file."""
_ASKED_KEPT_S: Final = 5.0
"""One of a plug-in, which itself keeps it for minutes."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """An API server. `token` is asked before each call, so that projected tokens may change."""

    url: str
    token: Callable[[], str] = field(default=lambda: "", repr=False)
    tls: ssl.SSLContext | None = None
    namespace: str = "default"


class _Kept:
    """A token that is dear to ask for, kept for a while; and on, where it can't be asked for again."""

    def __init__(self, ask: Callable[[], str], kept_s: float) -> None:
        self._ask = ask
        self._kept_s = kept_s
        self._token = ""
        self._asked_at = float("-inf")

    def __call__(self) -> str:
        now = time.monotonic()
        if now - self._asked_at >= self._kept_s:
            try:
                self._token = self._ask()
            except OSError as error:
                if not self._token:
                    raise ConfigError(
                        f"{error.filename}: {error.strerror}", hint="mount a service account's token"
                    ) from None
            self._asked_at = now
        return self._token


def in_cluster(folder: Path = SERVICE_ACCOUNT) -> Cluster:
    """The cluster that this pod runs in. Raises ConfigError where it is none."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConfigError("this is no pod: KUBERNETES_SERVICE_HOST is not set", hint="set KUBECONFIG")
    host = f"[{host}]" if ":" in host else host
    try:
        tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        namespace = (folder / "namespace").read_text().strip()
    except OSError as error:
        raise ConfigError(f"{folder}: {error}", hint="don't set automountServiceAccountToken to false") from error
    return Cluster(
        f"https://{host}:{port}", _Kept(lambda: (folder / "token").read_text().strip(), _TOKEN_KEPT_S), tls, namespace
    )


def from_kubeconfig(path: str = "", context: str = "") -> Cluster:
    """The cluster that `kubectl` talks to. Raises ConfigError."""
    try:
        from kubernetes import client, config  # noqa: PLC0415 - see the module's docstring
    except ImportError as error:
        raise ConfigError(
            f"a kubeconfig is read by the kubernetes package: {error}", hint="pip install 'aliquot[kubernetes]'"
        ) from error
    settings = client.Configuration()
    try:
        config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=path or os.environ.get("KUBECONFIG"), context=context or None, client_configuration=settings
        )
        _, active = config.list_kube_config_contexts(path or os.environ.get("KUBECONFIG"))  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError) as error:
        raise ConfigError(f"no Kubernetes here: {error}", hint="run it in a pod, or set KUBECONFIG") from error
    named = context or active["name"]
    spec = active["context"] if active["name"] == named else {}
    tls: ssl.SSLContext | None = None
    if settings.host.startswith("https:"):
        tls = ssl.create_default_context(cafile=settings.ssl_ca_cert)
        if not settings.verify_ssl:
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        if settings.cert_file:
            tls.load_cert_chain(settings.cert_file, settings.key_file)

    def read() -> str:
        refresh: Any = settings.refresh_api_key_hook
        if refresh is not None:
            refresh(settings)
        # The package has renamed the key once.
        found = settings.api_key.get("BearerToken") or settings.api_key.get("authorization") or ""
        return str(found).removeprefix("Bearer ")

    return Cluster(settings.host, _Kept(read, _ASKED_KEPT_S), tls, str(spec.get("namespace", "default")))


def find_cluster(kubeconfig: str = "", context: str = "") -> Cluster:
    """The pod's own cluster, unless a kubeconfig is named. Raises ConfigError."""
    if kubeconfig or context or "KUBERNETES_SERVICE_HOST" not in os.environ:
        return from_kubeconfig(kubeconfig, context)
    return in_cluster()
