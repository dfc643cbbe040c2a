"""`aliquot-console` as a program, in front of a pool as `aliquot up` starts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import httpx

from tests.client.real_pool import real_pool

PROGRAM = [sys.executable, "-c", "import sys; from aliquot.console.main import main; sys.exit(main())"]


def test_it_says_where_it_serves_and_ends_when_it_is_told_to() -> None:
    with real_pool(nodes=1) as pool:
        assert pool.token_file is not None
        token = pool.token_file.read_text().strip()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ALIQUOT_")}
        command = [*PROGRAM, "--port", "0", "--coordinator", pool.address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as console:
            assert console.stdout is not None
            try:
                word, _, document = console.stdout.readline().partition(" ")
                assert word == "ready"
                address = json.loads(document)["address"]
                headers = {"Authorization": f"Bearer {token}"}
                with httpx.Client(base_url=f"{address}/api/v1", headers=headers) as http:
                    body = {"request": {"gpu": "0.25,1Gi", "detached": True}, "until": "ACTIVE"}
                    lease = http.post("/leases", json=body).json()
                    assert (lease["state"], lease["slices"][0]["tier"]) == ("ACTIVE", "WATCHDOG")
                    http.post(f"/leases/{lease['lease_id']}:release")
                console.send_signal(signal.SIGTERM)
                assert console.wait(30) in (0, -signal.SIGTERM)
            finally:
                console.kill()


def test_what_it_can_not_do_is_said_in_one_line() -> None:
    ended = subprocess.run([*PROGRAM, "--host", "0.0.0.0"], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "without TLS" in ended.stderr
    assert "Traceback" not in ended.stderr
