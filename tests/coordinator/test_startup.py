"""Starting: what is refused, with a word that says what to do; and what is served."""

from __future__ import annotations

import asyncio
import dataclasses
import sqlite3
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from aliquot.v1 import pool_pb2, pool_pb2_grpc
from tests.certificates import Authority
from tests.coordinator.pool import sqlite
from tests.coordinator.process import Ended, serving, start
from tests.identity import insecure_channel, with_token


async def refused(*arguments: str) -> str:
    ended = await start("--metrics-port", "0", *arguments)
    assert isinstance(ended, Ended)
    assert ended.code == 1
    assert "Traceback" not in ended.said
    return ended.said


async def test_settings_that_nobody_knows_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "pool.toml"
    file.write_text('[coordinator]\nlisten = "127.0.0.1:0"\npolciy = "spread"\n')
    assert "did you mean policy" in await refused("--config", str(file), "--journal", "memory:")
    assert "sqlite:PATH" in await refused("--journal", "postgres://x")


async def test_a_journal_in_an_unfit_place_is_told_with_a_fit_one(tmp_path: Path) -> None:
    for place in (tmp_path, "/dev/null"):
        said = await refused("--listen", "127.0.0.1:0", "--journal", f"sqlite:{place}")
        assert f"sqlite:{place}/coordinator.db" in said


async def test_two_coordinators_on_one_journal_or_port(tmp_path: Path) -> None:
    async with serving("--journal", sqlite(tmp_path / "j.db")) as first:
        said = await refused("--listen", "127.0.0.1:0", "--journal", sqlite(tmp_path / "j.db"))
        assert "another coordinator" in said
        said = await refused("--listen", first.address, "--journal", "memory:")
        assert f"can't listen on {first.address}: Address already in use" in said
        for address, why in (
            ("192.0.2.1:7070", "Cannot assign requested address"),
            ("nobody.invalid:7070", "Name or service not known"),
            ("7070", "can't listen on 7070"),
            ("unix:/nowhere/there/pool.sock", "a socket needs a folder"),
        ):
            said = await refused("--listen", address, "--journal", "memory:")
            assert why in said
            assert "--listen takes HOST:PORT" in said
            assert "another coordinator" not in said
        for port in ("65536", "99999", "9" * 5000):
            said = await refused("--listen", f"127.0.0.1:{port}", "--journal", "memory:")
            assert "from 0 to 65535" in said


async def test_one_that_could_not_start_leaves_nothing_behind(tmp_path: Path) -> None:
    from aliquot.coordinator.coordinator import Coordinator
    from aliquot.coordinator.rpc.server import ListenError
    from tests.coordinator.pool import running, settings_for

    async with running() as first:
        taken = dataclasses.replace(settings_for(sqlite(tmp_path / "j.db")), listen=first.address)
        with pytest.raises(ListenError):
            await Coordinator(taken).start()
    async with running(settings_for(sqlite(tmp_path / "j.db"))) as pool:
        await pool.declare(1)
        assert [thread.name for thread in threading.enumerate()].count("journal") == 1


async def test_a_journal_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    async with serving("--journal", sqlite(tmp_path / "j.db")):
        pass
    connection = sqlite3.connect(tmp_path / "j.db")
    with connection:
        connection.execute("UPDATE meta SET value = 2 WHERE key = 'format'")
    connection.close()
    said = await refused("--listen", "127.0.0.1:0", "--journal", sqlite(tmp_path / "j.db"))
    assert "newer" in said


async def test_health_reflection_and_probes() -> None:
    async with serving("--journal", "memory:") as process, insecure_channel(process.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        for service in ("", "aliquot.grants", "aliquot.v1.LeaseService", "aliquot.v1.AgentService"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        services = {service.name for service in (await call.read()).list_services_response.service}
        assert {"aliquot.v1.LeaseService", "aliquot.v1.PoolService", "aliquot.v1.AgentService"} <= services
        await call.done_writing()
        assert await get(process.metrics, "/healthz") == (200, "ok\n")
        assert await get(process.metrics, "/readyz") == (200, "ok\n")
        assert (await get(process.metrics, "/else"))[0] == 404


async def get(address: str, path: str) -> tuple[int, str]:
    def read() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{address}{path}") as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, ""

    return await asyncio.to_thread(read)


async def test_tls_is_served(authority: Authority) -> None:
    certificate, key = authority.certify("coordinator")
    flags = ("--tls-cert", str(certificate), "--tls-key", str(key))
    async with serving("--journal", "memory:", *flags) as process:
        credentials = grpc.ssl_channel_credentials(authority.ca.read_bytes())
        port = process.address.rpartition(":")[2]
        async with with_token(grpc.aio.secure_channel(f"localhost:{port}", credentials)) as channel:
            status = await pool_pb2_grpc.PoolServiceStub(channel).GetStatus(pool_pb2.GetStatusRequest())
            assert status.granting


async def test_the_journal_is_compacted_by_another_process_while_it_serves(tmp_path: Path) -> None:
    from tests.coordinator.pool import eventually, running, settings_for

    settings = settings_for(sqlite(tmp_path / "j.db"), snapshot_every_facts=50)
    async with running(settings) as pool:
        await pool.declare(1)
        folder = tmp_path / "j.db.snapshots"

        for number in (1, 2):
            for _ in range(20):
                await pool.release((await pool.allocate("0.1")).lease_id)
            await eventually(lambda number=number: len(list(folder.glob("*.snap"))) == number, "a snapshot")  # type: ignore[misc]
        lease = await pool.allocate("0.1")
    async with running(settings) as pool:
        assert (await pool.get(lease.lease_id)).slices == lease.slices


async def test_a_part_that_fails_ends_the_coordinator_instead_of_leaving_it_without(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from aliquot.coordinator.coordinator import Coordinator
    from tests.coordinator.pool import settings_for

    def broken() -> None:
        raise ZeroDivisionError("a defect")

    coordinator = Coordinator(settings_for())
    await coordinator.start()
    assert coordinator.leading is not None
    coordinator.leading.sweep_timer._sweeps.append(broken)
    with pytest.raises(ZeroDivisionError):
        async with asyncio.timeout(60):
            await coordinator.serve()
    assert "sweeps failed" in caplog.text
