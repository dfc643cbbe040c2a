"""What a console has loaded is no garbage: it is not looked through again while somebody waits for an answer."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request

PROGRAM = """
import gc
from aliquot.console import serving

class Loaded:
    pass

loaded = Loaded()

async def app(scope, receive, send):
    if scope["type"] == "http":
        looked_at = any(each is loaded.__dict__ or each is loaded for each in gc.get_objects())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"looked at" if looked_at else b"left alone"})

serving.serve_app(app, ("127.0.0.1", 0))
"""


def test_what_was_loaded_before_it_serves_is_left_alone() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = json.loads(server.stdout.readline().removeprefix("ready "))["address"]
            with urllib.request.urlopen(address, timeout=45) as answer:
                assert answer.read() == b"left alone"
        finally:
            server.kill()
