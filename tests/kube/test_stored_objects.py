"""Objects that an older version's rules have let in: read with today's defaults, or left alone and told.

`crds/first.yaml` is the first version of `deploy/kube/crds.yaml` that had each kind.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from aliquot.kube.controllers.elastic_jobs import ElasticJobController
from aliquot.kube.core import names
from aliquot.kube.core.elastic_jobs import RawJob, RawJobSpec, RawJobStatus, RawScaling, gpu_of, replicas_of
from tests.coordinator.pool import eventually
from tests.kube.cluster import KubeCluster, audit
from tests.kube.making import make_namespace, set_phase
from tests.kube.test_elastic_jobs import CRDS, VERSION, bound, let_go, make_job, operator, pods_of, status

FIRST = Path(__file__).with_name("crds") / "first.yaml"
Schema = dict[str, Any]


def crds(file: Path) -> dict[str, Any]:
    return {each["metadata"]["name"]: each for each in yaml.safe_load_all(file.read_text())}


def schemas(file: Path) -> dict[tuple[str, str], Schema]:
    return {
        (name, version["name"]): version["schema"]["openAPIV3Schema"]
        for name, crd in crds(file).items()
        for version in crd["spec"]["versions"]
    }


# -- rules for what changes in a version


NARROWER: dict[str, Callable[[Any, Any], bool]] = {
    "minimum": lambda old, new: new is not None and (old is None or new > old),
    "minLength": lambda old, new: new is not None and (old is None or new > old),
    "maximum": lambda old, new: new is not None and (old is None or new < old),
    "maxLength": lambda old, new: new is not None and (old is None or new < old),
    "enum": lambda old, new: new is not None and (old is None or not set(old) <= set(new)),
    "pattern": lambda _, new: new is not None,
    "default": lambda old, _: old is not None,
}
"""Words of a schema that have changed: whether from the one to the other shuts something out."""


def narrower(before: Schema, after: Schema, where: str = "") -> Iterator[str]:
    """What the one let in and the other does not, or reads as something else."""
    if after.get("type") != before.get("type"):
        yield f"{where}: it was {before.get('type')}"
    if before.get("x-kubernetes-preserve-unknown-fields") and not after.get("x-kubernetes-preserve-unknown-fields"):
        yield f"{where}: fields that nobody knows were kept"
    for name in set(after.get("required", ())) - set(before.get("required", ())):
        yield f"{where}.{name}: it was not required"
    for word, shuts_out in NARROWER.items():
        old, new = before.get(word), after.get(word)
        if new != old and shuts_out(old, new):
            yield f"{where}: {word} was {old}"
    rules = {rule["rule"] for rule in before.get("x-kubernetes-validations", ())}
    for rule in after.get("x-kubernetes-validations", ()):
        if rule["rule"] not in rules:
            yield f"{where}: there was no rule {rule['rule']}"
    for name, field in before.get("properties", {}).items():
        if name not in after.get("properties", {}):
            yield f"{where}.{name}: it is gone"
        else:
            yield from narrower(field, after["properties"][name], f"{where}.{name}")
    if "items" in before:
        yield from narrower(before["items"], after.get("items", {}), f"{where}[]")


def test_what_a_version_let_in_it_lets_in_for_ever() -> None:
    before, after = schemas(FIRST), schemas(CRDS)
    assert before.keys() <= after.keys(), "a version that is not served any more"
    for name, schema in before.items():
        assert not list(narrower(schema, after[name], "/".join(name)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"type": "string"}, "it was integer"),
        ({"minimum": 2}, "minimum was 1"),
        ({"maximum": 10}, "maximum was 64"),
        ({"default": 2}, "default was 1"),
        ({"enum": [1]}, "enum was None"),
    ],
)
def test_a_change_that_shuts_something_out_is_noticed(change: Schema, said: str) -> None:
    field = {"type": "integer", "minimum": 1, "maximum": 64, "default": 1}
    before = {"type": "object", "properties": {"a": field}}
    after = {"type": "object", "properties": {"a": {**field, **change}}}
    assert any(said in each for each in narrower(before, after))


def test_fields_that_are_added_need_no_value_and_nothing_is_taken_away() -> None:
    before: Schema = {"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}}
    added: Schema = {**before, "properties": {**before["properties"], "b": {"type": "string"}}}
    assert not list(narrower(before, added))
    assert list(narrower(before, {**added, "required": ["a", "b"]})) == [".b: it was not required"]
    assert list(narrower(added, before)) == [".b: it is gone"]


def test_each_kind_is_stored_in_one_version_which_is_served() -> None:
    for name, crd in crds(CRDS).items():
        stored = [version for version in crd["spec"]["versions"] if version["storage"]]
        assert [version["served"] for version in stored] == [True], name
        assert len(crd["spec"]["versions"]) == 1 or "conversion" in crd["spec"], name


# -- what the operator reads


def defaults(schema: Schema) -> dict[str, Any]:
    return {name: field["default"] for name, field in schema["properties"].items() if "default" in field}


def test_what_is_not_said_is_the_same_to_the_operator_as_to_the_api_server() -> None:
    """Objects of before a field was there may come without its default, from a cache or a file."""
    spec = schemas(CRDS)["elasticjobs.aliquot.dev", "v1alpha1"]["properties"]["spec"]
    job = msgspec.json.decode(msgspec.json.encode(RawJobSpec()))
    assert defaults(spec).items() <= job.items()
    assert defaults(spec["properties"]["scaling"]).items() <= job["scaling"].items()
    assert set(spec["properties"]) == set(RawJobSpec.__struct_encode_fields__)
    assert set(spec["properties"]["scaling"]["properties"]) == set(RawScaling.__struct_encode_fields__)
    status_ = schemas(CRDS)["elasticjobs.aliquot.dev", "v1alpha1"]["properties"]["status"]
    assert set(status_["properties"]) == set(RawJobStatus.__struct_encode_fields__)


def test_an_object_of_the_first_version_with_the_least_that_it_asked_for_is_read() -> None:
    stored = {
        "apiVersion": VERSION,
        "kind": "ElasticJob",
        "metadata": {"name": "old", "namespace": "default", "uid": "u"},
        "spec": {"scaling": {"minReplicas": 2, "maxReplicas": 4}, "template": {}, "nobodyKnows": {"this": 1}},
    }
    job = msgspec.json.decode(msgspec.json.encode(stored), type=RawJob)
    assert replicas_of(job) == (2, 4)
    assert gpu_of(job).count == 1
    assert (job.spec.max_restarts, job.spec.priority, job.spec.preemptible) == (3, 0, False)


# -- what can't be read


def write(cluster: KubeCluster, name: str, **spec: Any) -> None:
    """As it was stored by other rules: past the API server's."""
    kind = cluster.api.store.kind(VERSION, "elasticjobs")
    old = kind.items["default", name]
    item = {**old, "spec": {**old["spec"], **spec}, "metadata": {**old["metadata"]}}
    cluster.api.store.write(kind, ("default", name), item, "MODIFIED")


@contextlib.asynccontextmanager
async def another(cluster: KubeCluster) -> AsyncIterator[ElasticJobController]:
    """An operator that has just started."""
    parts = cluster.extender.parts
    made = ElasticJobController(parts, names.SCHEDULER)
    running = asyncio.create_task(made.loop.run())
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_one_that_can_not_be_read_is_told_and_keeps_what_it_has(caplog: pytest.LogCaptureFixture) -> None:
    async with operator(3) as cluster:
        make_job(cluster, "old", 1, 1)
        await bound(cluster, "old", 1)
        write(cluster, "old", priority="high")
        make_job(cluster, "other", 1, 1)
        await bound(cluster, "other", 1)
        await eventually(lambda: "Unreadable" in cluster.events(), "an event that says so")
        assert "$.spec.priority" in cluster.events()["Unreadable"]
        # Nor is it taken for deleted by one that starts, and lists.
        async with another(cluster) as started:
            await eventually(lambda: started.loop.passes >= 2 or started.jobs.unreadable, "its list")
            assert list(started.jobs.unreadable) == ["default/old"]
            cluster.api.drop_watches()
            make_namespace(cluster.api, "another")  # a version that no watch of jobs has seen
            cluster.api.store.compact()
            await eventually(lambda: started.jobs.relists, "another list")
            make_job(cluster, "third", 1, 1)
            await bound(cluster, "third", 1)
        assert len(pods_of(cluster, "old")) == 1
        assert len(await cluster.leases()) == 3
        said = [record.getMessage() for record in caplog.records if "can't be read" in record.getMessage()]
        assert len(said) == 2, "once by each of the two"
        write(cluster, "old", priority=0)
        await audit(cluster)
        (pod,) = pods_of(cluster, "old")
        set_phase(cluster.api, pod, "Succeeded")
        await eventually(lambda: status(cluster, "old").get("phase") == "Succeeded", "its status")
        await cluster.settled(2)


async def test_one_that_can_not_be_read_is_deleted_as_any_other() -> None:
    async with operator(1) as cluster:
        make_job(cluster, "old", 1, 1)
        await bound(cluster, "old", 1)
        write(cluster, "old", priority="high")
        await eventually(lambda: "Unreadable" in cluster.events(), "an event that says so")
        kind = cluster.api.store.kind(VERSION, "elasticjobs")
        cluster.api.store.remove(kind, ("default", "old"))
        await eventually(lambda: let_go(cluster) and not pods_of(cluster, "old"), "its pods' end")
        await cluster.settled(0)
