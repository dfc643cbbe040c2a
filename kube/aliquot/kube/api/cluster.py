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
_ASKED_KEPT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """An API server. `token` is asked before each call, so that projected tokens may change."""

    url: str
    token: Callable[[], str] = field(default=lambda: "", repr=False)
    tls: ssl.SSLContext | None = None
    namespace: str = "default"


class _Kept:
    """What is dear to ask, kept for a few seconds: plug-ins that give tokens keep them for minutes."""

    def __init__(self, ask: Callable[[], str]) -> None:
        self._ask = ask
        self._token = ""
        self._asked_at = float("-inf")

    def __call__(self) -> str:
        now = time.monotonic()
        if now - self._asked_at >= _ASKED_KEPT_S:
            self._token, self._asked_at = self._ask(), now
        return self._token


class _TokenFile:
    """A projected token, read again each minute: the kubelet replaces it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._token = ""
        self._read_at = -_TOKEN_KEPT_S

    def __call__(self) -> str:
        if time.monotonic() - self._read_at >= _TOKEN_KEPT_S:
            try:
                self._token = self._path.read_text().strip()
            except OSError as error:
                if not self._token:
                    raise ConfigError(
                        f"{self._path}: {error.strerror}", hint="mount a service account's token"
                    ) from None
            self._read_at = time.monotonic()
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
    return Cluster(f"https://{host}:{port}", _TokenFile(folder / "token"), tls, namespace)


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

    return Cluster(settings.host, _Kept(read), tls, str(spec.get("namespace", "default")))


def find_cluster(kubeconfig: str = "", context: str = "") -> Cluster:
    """The pod's own cluster, unless a kubeconfig is named. Raises ConfigError."""
    if kubeconfig or context or "KUBERNETES_SERVICE_HOST" not in os.environ:
        return from_kubeconfig(kubeconfig, context)
    return in_cluster()
