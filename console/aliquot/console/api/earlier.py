"""Routes of an earlier API, with its envelope `{status, data}`. They say in a header which route took their place."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from aliquot.client import Request, WaitUntil
from aliquot.client.documents import plain
from aliquot.console.api.answers import answer, problem, shows
from aliquot.console.api.asking import Body
from aliquot.console.api.callers import Pool

router = APIRouter(tags=["earlier routes"], deprecated=True)


class Schedule(Body):
    """A pod that wants a part of a GPU."""

    pod_name: str = Field(max_length=128)
    namespace: str = "default"
    gpu_requirement: str | float | int = Field(description="In the request grammar: `0.5(A100)`, or a number of GPUs.")
    memory_requirement: str | float | int = Field(
        "", description="`10Gi`, or a number of GB (10⁹ bytes); empty: what goes with the share."
    )
    priority: int = Field(1, ge=-1000, le=1000)
    node_selector: dict[str, str] = Field(default_factory=dict)
    time_limit_s: int = Field(3600, ge=1, description="When what is granted ends, if nobody has released it.")

    @property
    def gpu(self) -> str:
        """In the request grammar."""
        memory = self.memory_requirement
        amount = memory if isinstance(memory, str) else f"{round(memory * 1000)}M"
        return f"{self.gpu_requirement},{amount}" if amount else str(self.gpu_requirement)


class Envelope(BaseModel):
    """What is answered."""

    status: str
    data: Any


def _envelope(data: object, successor: str, status: int = HTTPStatus.OK) -> Response:
    headers = {"Deprecation": "true", "Link": f'</api/v1/{successor}>; rel="successor-version"'}
    return answer({"status": "success", "data": data}, status, headers)


@router.get("/gpu/metrics", responses=shows(Envelope))
async def gpu_metrics(pool: Pool, node: str = "") -> Response:
    """The first 1,000 devices, or a node's."""
    page = await pool.devices_page("", 1000, node_id=node)
    return _envelope(plain(page.items), "devices")


@router.get("/cluster/status", responses=shows(Envelope))
async def cluster_status(pool: Pool) -> Response:
    """Totals, and how many requests wait."""
    status = await pool.status()
    return _envelope(plain(status) | {"pending_requests": status.queued}, "status")


@router.post("/schedule", status_code=HTTPStatus.CREATED, responses=shows(Envelope, HTTPStatus.CREATED))
async def schedule(pool: Pool, pod: Schedule) -> Response:
    """Ask for a lease that nobody keeps alive: it ends when it is released, or with its time limit."""
    request = Request(
        pod.gpu,
        name=pod.pod_name,
        labels={"namespace": pod.namespace},
        priority=pod.priority,
        node_selector=pod.node_selector,
        time_limit_s=pod.time_limit_s,
        detached=True,
    )
    lease = await pool.allocate(request, until=WaitUntil.QUEUED)
    nodes = [part.node_name for part in lease.slices]
    return _envelope(
        {"lease_id": lease.lease_id, "state": lease.state.value, "node": nodes[0] if nodes else None},
        "leases",
        HTTPStatus.CREATED,
    )


@router.get("/trends", responses=shows(Envelope))
async def trends() -> Response:
    """Not here: series over time are kept by Prometheus."""
    instead = "Prometheus keeps it (docs/metrics.md); what was used in a time: GET /api/v1/invoices/{tenant}"
    return _moved("what was so over time", instead)


@router.get("/dashboard/config", responses=shows(Envelope))
async def dashboard() -> Response:
    """Not here: dashboards are files for Grafana."""
    return _moved("dashboards", "import those of deploy/monitoring into Grafana, or open this console's page")


@router.post("/hpa", responses=shows(Envelope))
async def autoscaler() -> Response:
    """Not here: autoscalers are Kubernetes' own objects."""
    instead = (
        "`aliquot autoscale create` writes the HorizontalPodAutoscaler, wherever kubectl works (docs/autoscaling.md)"
    )
    return _moved("autoscalers", instead)


def _moved(what: str, instead: str) -> Response:
    detail = f"this console has no say over {what}"
    response = problem(HTTPStatus.NOT_IMPLEMENTED, "SERVED_ELSEWHERE", detail, hint=instead)
    response.headers["Deprecation"] = "true"
    return response
