"""The coordinator's flags: each is a setting of `config`, which says more about it."""

from __future__ import annotations

import argparse

from aliquot.common import config as common_config
from aliquot.coordinator.settings.config import ENV_PREFIX, Settings


def parse_settings(argv: list[str] | None, version: str) -> Settings:
    """Settings from flags, the environment and a file. Raises ConfigError."""
    parser = argparse.ArgumentParser(
        prog="aliquot-coordinator",
        description="The coordinator of a pool of GPU parts: decides, and journals what it has decided.",
    )
    parser.add_argument("--version", action="version", version=version)
    parser.add_argument("--listen", metavar="ADDRESS", help="host:port or unix:PATH (127.0.0.1:7070)")
    parser.add_argument(
        "--journal",
        metavar="JOURNAL",
        help="sqlite:PATH; postgres:CONNINFO to share it with standbys; memory: to forget",
    )
    parser.add_argument(
        "--advertise",
        metavar="ADDRESS",
        help="host:port that launchers and agents reach this one at, where others stand by",
    )
    parser.add_argument("--leader-expiry", metavar="TIME", help="how long a leader that says nothing still leads (3s)")
    parser.add_argument(
        "--metrics-port",
        metavar="PORT",
        type=int,
        help="HTTP port of /metrics, /healthz, /readyz; 0: a free one; -1: none",
    )
    parser.add_argument("--metrics-host", metavar="HOST", help="where that port listens (127.0.0.1)")
    parser.add_argument("--tls-cert", metavar="FILE", dest="tls.certificate_file", help="PEM file")
    parser.add_argument("--tls-key", metavar="FILE", dest="tls.key_file", help="PEM file")
    parser.add_argument(
        "--tls-client-ca", metavar="FILE", dest="tls.client_ca_file", help="PEM file: clients need a certificate by it"
    )
    parser.add_argument("--policy", metavar="NAME", help="how leases are placed: price, binpack, spread, …")
    parser.add_argument("--snapshot-every-facts", metavar="N", type=int, help="facts between two snapshots")
    parser.add_argument("--fsync-ms", dest="fsync_delay_ms", type=int, help=argparse.SUPPRESS)
    return common_config.parse(Settings, parser, argv, env_prefix=ENV_PREFIX, table="coordinator")
