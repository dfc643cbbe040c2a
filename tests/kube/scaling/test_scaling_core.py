"""What autoscalers are told, decided without a cluster."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.common.errors import AliquotError, ConfigError
from aliquot.common.request import parse_request
from aliquot.kube.core.accounts import AccountRule, tenants_of
from aliquot.kube.core.scaling.callers import EVERYBODY, FrontProxy, NotKnown, authenticated, front_proxy
from aliquot.kube.core.scaling.grammar import parse_goals, parse_scaled
from aliquot.kube.core.scaling.metrics_documents import CUSTOM, EXTERNAL, parse_path, quantity
from aliquot.kube.core.scaling.objects import Plan, document
from aliquot.kube.core.scaling.owning import registered, taken, way_out
from aliquot.kube.core.scaling.picture import Forecast, Held, Picture, PodLease, Waiting, asked_milli
from aliquot.kube.core.scaling.pods import RawOwnedMeta, RawOwner, owner_of
from aliquot.kube.core.scaling.reasons import Pods, Seen, reasons
from aliquot.kube.core.scaling.selectors import Selector, SelectorError, parse_selector
from aliquot.kube.core.scaling.signals import NotOffered, Scope, Signal, chosen_by, value_milli
from aliquot.kube.core.scaling.triggers import parse_trigger
from aliquot.kube.core.scaling.usage import FRESH_MS, GPU_USE, MEMORY_USE, POD_METRICS, ScaledPod, reading
from tests.kube.fake_api.selectors import selector

NOW = 1_000_000
POD = ScaledPod("default", "a", "uid", {}, "", "l", 0, "n", over=False, since_ms=0)

# -- use


def picture(*parts: Held, namespace: str = "default") -> Picture:
    lease = PodLease("l", namespace, {str(number): part for number, part in enumerate(parts)})
    return Picture(NOW, leases={"l": lease})


def held(share: int, percent: int | None, *, model: str = "A100-80", member: int = 0, seen_ms: int = NOW) -> Held:
    return Held(member, model, share, 1000, percent, 500, seen_ms)


@given(st.integers(1, 1000), st.integers(0, 100), st.integers(0, 100))
def test_a_neighbour_changes_nothing_and_use_is_of_the_share(share: int, percent: int, others: int) -> None:
    mine = held(share, percent)
    before = reading(picture(mine), POD, GPU_USE, NOW)
    after = reading(picture(mine, held(1000 - share, others, member=1)), POD, GPU_USE, NOW)
    assert before is not None
    assert before == after
    assert before.milli == min(1000, percent * 10_000 // share)
    elsewhere = {"other": PodLease("other", "default", {"x": held(1000 - share, others)})}
    there = Picture(NOW, leases={**picture(mine).leases, **elsewhere})
    assert reading(there, POD, GPU_USE, NOW) == before


def test_unknown_is_never_zero() -> None:
    for parts in ((), (held(250, None),), (held(250, 5), held(250, None)), (held(250, 5, seen_ms=NOW - FRESH_MS - 1),)):
        assert reading(picture(*parts), POD, GPU_USE, NOW) is None
    assert reading(picture(held(250, 5), namespace="another"), POD, GPU_USE, NOW) is None
    assert reading(picture(held(250, 0)), POD, GPU_USE, NOW) is not None
    with pytest.raises(KeyError):
        reading(picture(held(250, 5)), POD, "container_cpu_usage", NOW)


def test_vendors_are_told_apart() -> None:
    both = picture(held(500, 50), held(500, 10, model="MI300X"))
    found = {name: reading(both, POD, name, NOW) for name in POD_METRICS}
    values = {name: one.milli for name, one in found.items() if one is not None}
    assert values == {
        GPU_USE: 600,
        MEMORY_USE: 500,
        "container_nvidia_gpu_usage": 1000,
        "container_amd_gpu_usage": 200,
    }


def test_what_is_not_known_yet_is_as_it_was() -> None:
    before = picture(held(250, 20, seen_ms=NOW))
    after = picture(held(250, None, seen_ms=0)).remembering(before)
    assert reading(after, POD, GPU_USE, NOW) == reading(before, POD, GPU_USE, NOW)
    newer = picture(held(250, None, seen_ms=NOW + 1)).remembering(before)
    assert reading(newer, POD, GPU_USE, NOW) is None
    other = picture(held(500, None, seen_ms=0)).remembering(before)
    assert reading(other, POD, GPU_USE, NOW) is None


# -- what waits


def waiting(tenant: str, queue: str, *models: str, share: int = 500, since: int = NOW) -> Waiting:
    return Waiting(tenant, queue, "lab", models, share, since)


WAITING = Picture(
    NOW,
    (
        waiting("research", "night", "A100-80", "H100", since=NOW - 30_000),
        waiting("research/vision", "day", since=NOW - 5_000),
        waiting("researchers", "night", share=2000),
    ),
)


@pytest.mark.parametrize(
    ("signal", "scope", "text", "value"),
    [
        (Signal.QUEUE_DEPTH, Scope(), "", 3000),
        (Signal.QUEUE_DEPTH, Scope(("research",)), "", 2000),
        (Signal.QUEUE_DEPTH, Scope(()), "", 0),
        (Signal.OLDEST_WAIT, Scope(), "", 30_000),
        (Signal.OLDEST_WAIT, Scope(), "queue=day", 5_000),
        (Signal.MISSING_SHARE, Scope(), "queue=night", 2500),
        (Signal.QUEUE_DEPTH, Scope(), "model=H100", 1000),
        (Signal.QUEUE_DEPTH, Scope(), "model in (H100, A100-80)", 1000),
        (Signal.QUEUE_DEPTH, Scope(), "queue!=night,tenant", 1000),
        (Signal.QUEUE_DEPTH, Scope(), "!queue", 0),
    ],
)
def test_what_waits_is_chosen(signal: Signal, scope: Scope, text: str, value: int) -> None:
    assert value_milli(WAITING, signal, scope, parse_selector(text)) == value


def test_forecasts_are_of_pools_or_of_tenants_and_never_of_both() -> None:
    with pytest.raises(NotOffered, match="offers no forecast"):
        value_milli(WAITING, Signal.FORECAST, Scope(), Selector())
    series = [("", "", 4000), ("pool", "lab", 3000), ("tenant", "research", 1500), ("tenant", "research/vision", 500)]
    hours = 3_600_000
    expected = Picture(
        NOW,
        forecasts=tuple(Forecast(kind, name, NOW, (None, share, None, 2 * share)) for kind, name, share in series),
    )
    mine = Scope(("research",))
    for scope, chosen, value in (
        (Scope(), chosen_by(), 4000),
        (Scope(), chosen_by(pool="lab"), 3000),
        (Scope(), chosen_by(tenant="research/vision", hours="3"), 1000),
        (mine, chosen_by(), 2000),
        (mine, chosen_by(tenant="research/vision"), 500),
    ):
        assert value_milli(expected, Signal.FORECAST, scope, chosen) == value
    for scope, chosen in (
        (Scope(), chosen_by(hours="2")),
        (Scope(), chosen_by(hours="9")),
        (Scope(), chosen_by(pool="none")),
        (mine, chosen_by(pool="lab")),
        (Scope(("research/vision",)), chosen_by(tenant="other")),
    ):
        with pytest.raises(NotOffered):
            value_milli(expected, Signal.FORECAST, scope, chosen)
    for text in ("hours=0", "hours=x", "tenant=a,pool=b", "tenant in (a, b)", "colour=red"):
        with pytest.raises(SelectorError):
            value_milli(expected, Signal.FORECAST, Scope(), parse_selector(text))
    assert expected.forecasts is not None
    assert expected.forecasts[0].at(NOW + hours - 1) is None


@pytest.mark.parametrize(
    ("gpu", "members", "milli"),
    [
        ("1", 1, 1000),
        ("0.25", 1, 250),
        ("2x0.5", 3, 3000),
        ("40Gi(A100-80)", 1, 500),
        ("8Gi", 1, 1000),
        ("1g.10gb", 1, 142),
    ],
)
def test_what_a_request_asks_for(gpu: str, members: int, milli: int) -> None:
    assert asked_milli(parse_request(gpu), members) == milli


_WORD = st.sampled_from(["a", "b", "app", "tier.x/y", "v1"])
_TERM = st.one_of(
    st.builds("{}={}".format, _WORD, _WORD),
    st.builds("{}!={}".format, _WORD, _WORD),
    st.builds("{}=={}".format, _WORD, _WORD),
    st.builds("{} in ({}, {})".format, _WORD, _WORD, _WORD),
    st.builds("{} notin ({},{})".format, _WORD, _WORD, _WORD),
    _WORD,
    st.builds("!{}".format, _WORD),
)


@given(st.lists(_TERM, max_size=4), st.dictionaries(_WORD, _WORD))
def test_selectors_choose_as_the_api_server_does(terms: list[str], labels: dict[str, str]) -> None:
    text = ",".join(terms)
    assert parse_selector(text).matches(labels) is selector("", text)({"metadata": {"labels": labels}})


@given(st.text(max_size=60))
def test_any_selector_is_read_or_refused(text: str) -> None:
    try:
        parse_selector(text)
    except AliquotError as error:
        assert error.hint


def test_a_namespaces_tenants_are_those_that_its_pods_may_have() -> None:
    rules = (
        AccountRule(namespace="ml-*", pod_labels={"team": "vision"}, tenant="research/vision"),
        AccountRule(namespace="ml-*", namespace_labels={"paid": "yes"}, tenant="paying/{namespace}"),
        AccountRule(namespace="ml-*", tenant="research"),
        AccountRule(tenant="rest"),
    )
    assert tenants_of(rules, "ml-a", {}) == ("research/vision", "research")
    assert tenants_of(rules, "ml-a", {"paid": "yes"}) == ("research/vision", "paying/ml-a")
    assert tenants_of(rules, "web", {}) == ("rest",)
    assert tenants_of(rules[:1], "web", {}) == ()


# -- who calls


def test_the_front_proxy_speaks_for_others() -> None:
    proxy = FrontProxy("pem", ("front",))
    headers = [("X-Remote-User", "jane"), ("x-remote-group", "dev"), ("X-Remote-Extra-Scopes", "a")]
    caller = proxy.caller("front", headers)
    assert (caller.name, caller.groups, caller.extra) == ("jane", ("dev", EVERYBODY), {"scopes": ("a",)})
    for name, some in (("other", headers), ("front", headers[1:]), ("front", [("X-Remote-User", "")])):
        with pytest.raises(NotKnown):
            proxy.caller(name, some)
    assert authenticated("system:anonymous", ["system:unauthenticated"], {}).groups == ("system:unauthenticated",)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({}, "names no requestheader-client-ca-file"),
        ({"requestheader-client-ca-file": "x", "client-ca-file": "x\n"}, "call in another's name"),
        ({"requestheader-client-ca-file": "x", "requestheader-allowed-names": "front"}, "no list of names"),
    ],
)
def test_a_front_proxy_that_anybody_could_be_is_refused(data: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        front_proxy(data)
    assert front_proxy({"requestheader-client-ca-file": "x", "client-ca-file": "y"}).user_headers == ("X-Remote-User",)


@given(st.text(alphabet="/apisnmetrck.8v1b2%2AF*-", max_size=80))
def test_any_path_is_understood_or_not_there(path: str) -> None:
    parse_path(path, (CUSTOM, EXTERNAL))


def test_paths_are_those_that_autoscalers_ask_for() -> None:
    found = parse_path(f"/apis/{CUSTOM}/v1beta2/namespaces/a/pods/%2A/{GPU_USE}", (CUSTOM,))
    assert found is not None
    assert (found.namespace, found.resource, found.name, found.metric) == ("a", "pods", "*", GPU_USE)
    assert parse_path(f"/apis/{EXTERNAL}/v1beta1/namespaces/a/x", (CUSTOM,)) is None
    assert parse_path(f"/apis/{CUSTOM}/v1/namespaces/a/pods/b/c", (CUSTOM,)) is None
    assert [quantity(value) for value in (0, 600, 1000, 1500)] == ["0", "600m", "1", "1500m"]


# -- what is written, and why nothing scales


def test_what_is_written_for_keda_is_what_our_scaler_reads() -> None:
    goals = parse_goals(["queue:4", "wait:1.5", "missing:0.5", "gpu:60%", "gpu-memory:80%", "cpu:70%"])
    plan = Plan(
        "ns", "web", parse_scaled("deploy/web"), 0, 8, goals, {"queue": "night"}, keda=True, scaler="s:1", auth="x"
    )
    triggers = document(plan)["spec"]["triggers"]
    read = {one["metadata"]["metric"]: parse_trigger(one["metadata"]) for one in triggers if one["type"] == "external"}
    assert {name: one.target_milli for name, one in read.items()} == {
        goal.metric: goal.amount for goal in goals if not goal.resource
    }
    assert read[GPU_USE].owner == "Deployment/web"
    assert read[Signal.QUEUE_DEPTH].selector.equalities == {"queue": "night"}


def test_a_taken_api_is_told_with_both_names() -> None:
    def api(name: str, service: str) -> Any:
        namespace, _, which = service.partition("/")
        document = {"spec": {"service": {"namespace": namespace, "name": which}} if which else {}}
        return registered(name, document)

    mine = api(f"v1beta2.{CUSTOM}", "aliquot-system/aliquot-scaling")
    assert not taken([mine, registered(f"v1beta1.{CUSTOM}", None)], "aliquot-system/aliquot-scaling")
    theirs = api(f"v1beta1.{EXTERNAL}", "keda/keda-operator-metrics-apiserver")
    said = taken([mine, theirs], "aliquot-system/aliquot-scaling")
    assert "keda/keda-operator-metrics-apiserver" in said
    assert "aliquot-system/aliquot-scaling" in said
    assert "scaling.external=false" in way_out([mine, theirs], "aliquot-system/aliquot-scaling")
    assert "of the API server itself" in taken([api(f"v1beta1.{CUSTOM}", "")], "x/y")


def test_reasons_are_told_with_what_mends_them() -> None:
    plan = Plan("ns", "web", parse_scaled("deploy/web"), 1, 8, parse_goals(["gpu:60%"]))
    hpa = document(plan)
    condition = {"type": "ScalingActive", "status": "True", "reason": "ValidMetricFound", "message": ""}
    there = registered(
        f"v1beta2.{CUSTOM}",
        {
            "spec": {"service": {"namespace": "a", "name": "b"}},
            "status": {"conditions": [{"type": "Available", "status": "True"}]},
        },
    )
    good = {**hpa, "status": {"conditions": [condition]}}
    assert not reasons(Seen(good, apis=[there], pods=Pods(2, 2)))
    full = reasons(Seen(good, apis=[there], pods=Pods(2, 2, ("web-1",))))
    assert [one.text for one in full] == ["1 pods wait for GPUs: web-1"]
    plain = reasons(Seen(good, apis=[there], pods=Pods(2, 0)))
    assert "none of its pods asks" in plain[0].text
    assert "KEDA has made no HPA" in reasons(Seen(None))[0].text


@pytest.mark.parametrize(
    ("kind", "name", "hashed", "owner"),
    [
        ("ReplicaSet", "web-abc", "abc", "Deployment/web"),
        ("ReplicaSet", "alone", "", "ReplicaSet/alone"),
        ("StatefulSet", "db", "", "StatefulSet/db"),
    ],
)
def test_a_pod_is_its_deployments(kind: str, name: str, hashed: str, owner: str) -> None:
    labels = {"pod-template-hash": hashed} if hashed else None
    meta = RawOwnedMeta(labels=labels, owner_references=[RawOwner(kind, name, controller=True)])
    assert owner_of(meta) == owner
    assert not owner_of(RawOwnedMeta())
