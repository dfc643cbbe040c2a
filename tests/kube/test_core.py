"""The pure parts: what pods ask for, who pays, what fits together; and reconciling, from any order of events."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from aliquot.common.errors import AliquotError
from aliquot.common.limits import MIB
from aliquot.common.request import parse_request
from aliquot.common.tiers import Tier
from aliquot.kube.api.client import KubeClient
from aliquot.kube.core import gangs, names
from aliquot.kube.core.accounts import AccountRule, NoAccount, account_of, priority_of
from aliquot.kube.core.asking import Asked, PodAskError, asked_by, options_of, request_text
from aliquot.kube.core.extending import FilterArgs, PreemptArgs, scores, split
from aliquot.kube.core.leases import KubeLease, Part, assignment_of
from aliquot.kube.core.pods import Gang, PodRecord, flatten
from aliquot.kube.core.reconciling import Ask, Evict, Look, Patience, Release, reconcile
from aliquot.kube.core.shapes import RawPod
from aliquot.kube.holding.requests import Requests

Limits = dict[str, Any]


def pod(*containers: Limits, inits: tuple[tuple[Limits, bool], ...] = (), annotations: Limits | None = None) -> RawPod:
    """With these limits; init containers with whether they are sidecars."""
    document = {
        "metadata": {"name": "a", "namespace": "n", "annotations": annotations or {}},
        "spec": {
            "containers": [{"name": f"c{i}", "resources": {"limits": limits}} for i, limits in enumerate(containers)],
            "initContainers": [
                {"name": f"i{i}", "resources": {"limits": limits}, **({"restartPolicy": "Always"} if sidecar else {})}
                for i, (limits, sidecar) in enumerate(inits)
            ],
        },
    }
    return msgspec.convert(document, RawPod)


def percent(value: Any) -> Limits:
    return {names.GPU_PERCENT: value}


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (pod(percent(25)), "0.25"),
        (pod(percent("25"), {names.GPU_MEMORY_MIB: "8192"}), "0.25,8Gi"),
        (pod({names.GPU_MEMORY_MIB: "8k"}), "8000Mi"),
        (pod({names.GPU: 2}), "2"),
        (pod(percent(300)), "3"),
        (pod({names.GPU: "1", names.GPU_MEMORY_MIB: 1024}), "1,1Gi"),
        (pod(annotations={names.REQUEST: "0.25(A100),10Gi"}), "0.25(A100),10Gi"),
        (pod(percent(25), annotations={names.REQUEST: "0.25(A100)"}), "0.25(A100)"),
        (pod(percent(100), annotations={names.REQUEST: "2x0.5"}), "2x0.5"),
        # An init container and the containers take turns; a sidecar is beside both.
        (pod(percent(20), inits=((percent(50), False),)), "0.5"),
        (pod(percent(50), inits=((percent(20), False), (percent(30), False))), "0.5"),
        (pod(percent(30), inits=((percent(20), True), (percent(40), False))), "0.6"),
        (pod(percent(50), inits=((percent(40), False), (percent(20), True))), "0.7"),
    ],
)
def test_what_pods_ask_for(asked: RawPod, text: str) -> None:
    assert request_text(asked_by(asked)) == text


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (pod(percent(130)), "whole GPUs"),
        (pod(percent(70), percent(60)), "whole GPUs"),
        (pod({names.GPU: 1, names.GPU_PERCENT: 10}), "both"),
        (pod({names.GPU: 2, names.GPU_MEMORY_MIB: 10}), "all of their memory"),
        (pod(percent(50), annotations={names.REQUEST: "0.25"}), "contradict"),
        (pod({names.GPU_MEMORY_MIB: 100}, annotations={names.REQUEST: "0.25,10Gi"}), "contradict"),
        (pod(percent("0.5")), "byte"),
        (pod(percent("x")), "quantity"),
        (pod({names.GPU: 65}), "at most 64"),
    ],
)
def test_what_contradicts_itself_is_said(asked: RawPod, said: str) -> None:
    found = asked_by(asked)
    assert found.anything
    with pytest.raises(AliquotError, match=said):
        request_text(found)


def test_a_tier_that_is_none_is_refused() -> None:
    assert options_of(Asked(25, options=(("min_tier", "driver"),))) == {"min_tier": Tier.DRIVER}
    with pytest.raises(PodAskError, match=r"aliquot\.dev/min-tier: 'strong' is no tier"):
        options_of(Asked(25, options=(("min_tier", "strong"),)))


async def test_a_pod_says_that_a_mig_instance_will_do_as_well() -> None:
    requests = Requests(cast("KubeClient", None), "here")
    for said, expected in (("true", True), ("True", True), ("false", False), ("", False)):
        asked = pod(percent(25), annotations={"aliquot.dev/or-mig": said})
        assert options_of(asked_by(asked)).get("or_mig", False) is expected
        made = await requests.of(asked)
        assert made is not None
        assert made.request.or_mig is expected
    with pytest.raises(PodAskError, match="neither true nor false"):
        options_of(asked_by(pod(percent(25), annotations={"aliquot.dev/or-mig": "maybe"})))


async def test_the_lease_is_told_what_its_pod_says_that_it_is() -> None:
    requests = Requests(cast("KubeClient", None), "here")
    plain, asked = pod(percent(25)), pod(percent(25))
    asked.metadata.labels = {"workload-type": "inference", "app": "chat"}
    made, other = await requests.of(asked), await requests.of(plain)
    assert made is not None
    assert other is not None
    assert dict(made.request.labels) == dict(other.request.labels) | {"workload-type": "inference"}


@given(percent_=st.integers(1, 100), mib=st.integers(0, 1 << 20))
def test_integers_lose_nothing(percent_: int, mib: int) -> None:
    limits = {names.GPU_PERCENT: percent_} | ({names.GPU_MEMORY_MIB: mib} if mib else {})
    request = parse_request(request_text(asked_by(pod(limits))))
    assert (request.share_milli, request.memory_bytes or 0) == (percent_ * 10, mib * MIB)


@given(st.lists(st.integers(-(2**31), 2 * 10**9), min_size=2, max_size=20))
def test_priorities_keep_their_order(values: list[int]) -> None:
    ours = [priority_of(value) for value in sorted(values)]
    assert ours == sorted(ours)
    assert all(-1000 <= value <= 1000 for value in ours)


def test_rules_name_tenants_and_labels_of_pods_only_choose() -> None:
    rules = (
        AccountRule(namespace="ml", pod_labels={"tier": "prod"}, tenant="ml/prod"),
        AccountRule(namespace_labels={"team": "a"}, tenant="team-a", queue="q"),
    )
    assert account_of(rules, "ml", {}, {"tier": "prod"}).tenant == "ml/prod"
    assert account_of(rules, "x", {"team": "a"}, {"tier": "prod"}, "mine").queue == "q"
    with pytest.raises(NoAccount):
        account_of(rules, "x", {}, {"tier": "prod"})
    assert account_of((AccountRule(),), "x", {}, {}, "mine").tenant == "x"


def test_words_of_the_extender_are_go_cased() -> None:
    text = b'{"Pod":{"metadata":{"name":"a"},"spec":{"containers":[]}},"Nodes":null,"NodeNames":["x","y"]}'
    args = msgspec.json.decode(text, type=FilterArgs)
    assert args.node_names == ["x", "y"]
    answer = msgspec.json.decode(msgspec.json.encode(split(args.node_names, {"y": "full"})))
    assert answer == {"NodeNames": ["x"]}
    answer = msgspec.json.decode(msgspec.json.encode(split(args.node_names, {"x": "ill", "y": "full", "z": "full"})))
    assert answer == {"NodeNames": [], "FailedNodes": {"x": "ill", "y": "full"}}
    found = msgspec.json.encode(scores({"x": 3, "y": 0, "z": 6}))
    assert found == b'[{"Host":"x","Score":5},{"Host":"y","Score":0},{"Host":"z","Score":10}]'
    proposed = b'{"Pod":{},"NodeNameToMetaVictims":{"x":{"Pods":[{"UID":"u"}],"NumPDBViolations":1}}}'
    victims = msgspec.json.decode(proposed, type=PreemptArgs).victims
    assert victims is not None
    assert victims["x"].pods is not None
    assert (victims["x"].pods[0].uid, victims["x"].pdb_violations) == ("u", 1)


# -------------------------------------------------------------------------------------------------------- reconciling

NOW = 1_000_000


def record(uid: str, **fields: Any) -> PodRecord:
    known: dict[str, Any] = {
        "namespace": "n",
        "name": f"p{uid}",
        "uid": uid,
        "version": "1",
        "node": "",
        "phase": "Pending",
        "deleting": False,
        "priority": 0,
        "asked": Asked(25),
        "queue": "",
        "lease_id": "",
        "member": -1,
        "gang": None,
    }
    return PodRecord(**{**known, **fields})


def lease(lease_id: str, uid: str = "", *, gang: str = "", size: int = 1, **fields: Any) -> KubeLease:
    parts = tuple(Part(f"node-{member}", member, f"GPU-{member}", 250, 1) for member in range(size))
    known: dict[str, Any] = {"state": "GRANTED", "granted_ms": NOW, "owner": "gang" if gang else "", "attempt": 0}
    return KubeLease(lease_id, namespace="n", pod_uid=uid, gang=gang, size=size, parts=parts, **{**known, **fields})


def test_what_is_certain_is_released_and_what_is_not_is_looked_at() -> None:
    bound = record("1", node="node-0", lease_id="l1")
    cases: list[tuple[list[PodRecord], list[KubeLease], list[object]]] = [
        ([bound], [lease("l1", "1")], []),
        ([], [lease("l1", "1")], [Look]),
        ([record("1", phase="Failed", node="node-0", lease_id="l1")], [lease("l1", "1")], [Release]),
        ([record("1")], [lease("l1", "1")], []),
        ([record("1")], [lease("l1", "1", granted_ms=0)], [Look]),
        ([record("1", node="node-0", lease_id="l2")], [lease("l1", "1"), lease("l2", "1")], [Look]),
        ([bound], [lease("l1", "1", state="ENDED", end_reason="PREEMPTED")], [Evict]),
        ([bound], [lease("l1", "1", state="PREEMPTING")], [Evict]),
        ([bound], [lease("l1", "1", state="QUEUED")], [Release, Evict]),
        ([bound], [lease("l1", "1", state="UNREACHABLE")], []),
        ([bound], [], [Ask]),
        ([record("1", node="node-0", lease_id="l1", deleting=True)], [], []),
        ([], [lease("l1", "1", state="RELEASING")], []),
    ]
    for pods, leases, kinds in cases:
        assert [type(action) for action in reconcile(pods, leases, NOW)] == kinds, (pods, leases)
    (certain,) = reconcile([], [lease("l1", "1")], NOW, deleted={"1"})
    assert isinstance(certain, Release)
    assert not reconcile([], [lease("l1", "1")], NOW, under_way={"1"}, deleted={"1"})


def test_a_gang_is_held_together() -> None:
    gang = Gang("n", "g", 2)
    waiting = [record("1", gang=gang), record("2", gang=gang)]
    first = record("1", gang=gang, node="node-0", lease_id="l", member=0)
    second = record("2", gang=gang, node="node-1", lease_id="l", member=1)
    held = lease("l", gang="g", size=2)
    old = lease("l", gang="g", size=2, granted_ms=0)
    assert not reconcile(waiting, [held], NOW)
    assert not reconcile([first, waiting[1]], [held], NOW)
    assert [type(action) for action in reconcile([first, waiting[1]], [old], NOW)] == [Look]
    assert not reconcile([first, second], [old], NOW)
    ended = [msgspec.structs.replace(one, phase="Succeeded") for one in (first, second)]
    assert not reconcile([ended[0], second], [old], NOW)
    assert [type(action) for action in reconcile(ended, [old], NOW)] == [Release]
    assert [type(action) for action in reconcile([], [held], NOW)] == [Look]
    assert not reconcile([], [lease("l", gang="g", size=2, owner="kueue")], NOW)


def test_room_that_is_made_for_a_gang_is_waited_for_but_not_for_ever() -> None:
    gang = Gang("n", "g", 2)
    waiting = [record("1", gang=gang), record("2", gang=gang)]
    asked = lease("l", gang="g", size=2, state="QUEUED")
    assert not reconcile(waiting, [asked], NOW)
    assert [type(action) for action in reconcile([], [asked], NOW)] == [Look]
    late = lease("l", gang="g", size=2, state="QUEUED", granted_ms=0)
    assert [type(action) for action in reconcile(waiting, [late], NOW)] == [Look]
    back = lease("l", gang="g", size=2, state="QUEUED", requeues=1)
    assert [type(action) for action in reconcile(waiting, [back], NOW)] == [Release]


def test_members_are_given_once() -> None:
    held = lease("l", gang="g", size=3)
    every = {f"node-{member}" for member in range(3)}
    assert gangs.choose(held.members, "a", {}, every) == 0
    assert gangs.choose(held.members, "b", {0: "a"}, every) == 1
    assert gangs.choose(held.members, "a", {0: "a", 1: "b"}, every) == 0
    assert gangs.choose(held.members, "c", {0: "a"}, {"node-0"}) is None
    said = msgspec.json.decode(assignment_of(held, 1)[names.ASSIGNMENT])
    assert said["slices"] == [{"device": "GPU-1", "share_milli": 250, "memory_bytes": 1, "tier": ""}]
    assert (said["node"], said["member"]) == ("node-1", 1)


def test_a_forged_assignment_is_read_as_none() -> None:
    forged = pod(percent(10), annotations={names.ASSIGNMENT: "{", names.LEASE_ID: "l"})
    assert flatten(forged).member == -1


class Reconciling(RuleBasedStateMachine):
    """Pods come, are granted, bound and go; any process may miss any of it. When it settles there is no ghost."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.truth: dict[str, PodRecord] = {}
        self.seen: dict[str, PodRecord] = {}
        self.leases: dict[str, KubeLease] = {}
        self.count = 0

    @rule()
    def create(self) -> None:
        self.count += 1
        uid = str(self.count)
        self.truth[uid] = record(uid)

    @rule(data=st.data())
    def grant(self, data: st.DataObject) -> None:
        """The extender may be ahead of what reconciling sees."""
        free = [uid for uid, one in self.truth.items() if not one.node and not self.live_of(uid)]
        if free:
            uid = data.draw(st.sampled_from(free))
            self.count += 1
            lease_id = f"l{self.count}"
            self.leases[lease_id] = lease(lease_id, uid, granted_ms=self.now)

    @rule(data=st.data())
    def bind(self, data: st.DataObject) -> None:
        ready = [
            (uid, one.lease_id)
            for uid in self.truth
            for one in self.leases.values()
            if one.pod_uid == uid
            and one.live
            and not self.truth[uid].node
            and self.now - one.granted_ms <= Patience().unbound_ms
        ]
        if ready:
            uid, lease_id = data.draw(st.sampled_from(ready))
            self.truth[uid] = msgspec.structs.replace(self.truth[uid], node="node-0", lease_id=lease_id, member=0)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        if self.truth:
            self.truth.pop(data.draw(st.sampled_from(sorted(self.truth))))

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        bound = sorted(uid for uid, one in self.truth.items() if one.node)
        if bound:
            uid = data.draw(st.sampled_from(bound))
            self.truth[uid] = msgspec.structs.replace(self.truth[uid], phase="Succeeded")

    @rule(data=st.data())
    def end_lease(self, data: st.DataObject) -> None:
        """Preempted, or released by an administrator."""
        live = sorted(lease_id for lease_id, one in self.leases.items() if one.live)
        if live:
            self.end(data.draw(st.sampled_from(live)), "by somebody")

    @rule(ms=st.integers(1, 100_000))
    def wait(self, ms: int) -> None:
        self.now += ms

    @rule(data=st.data())
    def see(self, data: st.DataObject) -> None:
        """Any part of the truth arrives."""
        for uid in self.truth.keys() | self.seen.keys():
            if data.draw(st.booleans()):
                self.catch_up(uid)

    @rule()
    def round(self) -> None:
        for action in reconcile(self.seen.values(), self.leases.values(), self.now):
            match action:
                case Release(lease_id):
                    self.end(lease_id)
                case Look(lease_id):
                    if not self.in_use(lease_id):
                        self.end(lease_id)
                case Evict(uid=uid):
                    self.truth.pop(uid, None)
                case Ask(_):
                    pass

    @invariant()
    def nothing_in_use_was_released(self) -> None:
        for one in self.truth.values():
            if one.lease_id and not one.over:
                held = self.leases[one.lease_id]
                assert held.live or held.end_reason == "by somebody", f"{one} lost {held}"

    def teardown(self) -> None:
        """All is seen, time passes: pods that run have a lease, and leases a pod."""
        for _ in range(3):
            for uid in list(self.truth.keys() | self.seen.keys()):
                self.catch_up(uid)
            self.now += 1_000_000
            self.round()
        used = {one.lease_id for one in self.truth.values() if one.node and not one.over}
        live = {lease_id for lease_id, one in self.leases.items() if one.live}
        assert used == live

    def catch_up(self, uid: str) -> None:
        if uid in self.truth:
            self.seen[uid] = self.truth[uid]
        else:
            self.seen.pop(uid, None)

    def live_of(self, uid: str) -> bool:
        return any(one.pod_uid == uid and one.live for one in self.leases.values())

    def in_use(self, lease_id: str) -> bool:
        held = self.leases[lease_id]
        one = self.truth.get(held.pod_uid)
        if one is None or one.over:
            return False
        return one.lease_id == lease_id if one.node else self.now - held.granted_ms <= Patience().unbound_ms

    def end(self, lease_id: str, why: str = "released") -> None:
        held = self.leases[lease_id]
        self.leases[lease_id] = lease(lease_id, held.pod_uid, state="ENDED", granted_ms=held.granted_ms, end_reason=why)


TestReconciling = Reconciling.TestCase
