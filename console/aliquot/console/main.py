"""The console's program.

    aliquot-console --coordinator coord-a:7070,coord-b:7070

When it serves it prints one line, `ready {"address": …}`. It keeps nothing: run as many as you like, kill any of them.
"""

from __future__ import annotations

import sys

from aliquot.client import AsyncPool
from aliquot.common import logging as common_logging
from aliquot.common.errors import AliquotError
from aliquot.common.gauges import Own, scraped
from aliquot.common.runtime import VERSION
from aliquot.common.services import WORD, install_service
from aliquot.common.tls import ClientTls, in_authority
from aliquot.console.app import make_app
from aliquot.console.serving import serve_app
from aliquot.console.settings import Settings, parse_settings

RETRIES_S = 10.0
"""How long a call to the coordinator may take, retries included: a person waits."""


def serve(settings: Settings) -> None:
    """Until SIGTERM or SIGINT. Raises ConfigError."""

    def connect(token: str) -> AsyncPool:
        ca_file = settings.tls.coordinator_ca_file
        return AsyncPool(
            settings.coordinator or None,
            token=token,
            tls=ClientTls(ca_file) if ca_file is not None else None,
            timeout_s=RETRIES_S,
            agent_sockets=(),
        )

    tls, metrics = settings.tls.server(), ""
    if settings.metrics_port >= 0:
        host, token_file = settings.metrics_host, settings.metrics_token_file
        served = scraped(host, settings.metrics_port, Own(tls), token_file, tls=tls)
        metrics = f"{in_authority(host)}:{served.port}"
    app = make_app(settings, connect)
    serve_app(app, (settings.host, settings.port), tls=tls, drain_ms=settings.drain, metrics=metrics)


def main(argv: list[str] | None = None) -> int:
    """The program."""
    words = sys.argv[1:] if argv is None else argv
    try:
        if words[:1] == [WORD]:
            return install_service("aliquot-console", words[1:])
        settings = parse_settings(argv, VERSION)
        common_logging.configure(settings.log_level, json=settings.log_json)
        serve(settings)
    except AliquotError as error:
        sys.stderr.write(error.explain() + "\n")
        return 1
    return 0
