"""What ``deploy/`` holds is what its tools accept, and its parts fit each other and what they start.

Nothing is started: the manifests are rendered by kubectl and checked against Kubernetes' schemas offline.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema.exceptions import ValidationError

from sloserve.fleet.beside.endpoint_picker.picker_file import read_picker
from sloserve.fleet.file import read_fleet
from sloserve.fleet.run.live import NO_HOST
from tests.deploy.rendered import (
    DEPLOY,
    KUBERNETES,
    OF_OPERATORS,
    ROOT,
    by_kind,
    check_selectors,
    kustomized,
    pods,
    tool,
    validate,
)

FOLDERS = ["base", "cpu", "tp8", "fleet", "llm-d", "picker"]
SLACK_S = 10
"""Docs: a grace period is ten seconds more than the time that requests have."""


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_kubernetes_knows_every_object_and_field(folder: str) -> None:
    made = kustomized(folder)
    validate(made)
    kinds = {one["kind"] for one in made}
    assert {"Deployment", "Service", "PodDisruptionBudget", "ServiceMonitor", "PrometheusRule", "ConfigMap"} <= kinds


def test_the_operator_would_refuse_a_mistyped_field_of_a_monitor() -> None:
    made = yaml.safe_load((KUBERNETES / "base" / "monitor.yaml").read_text())
    made["spec"]["endpoints"][0]["intervall"] = made["spec"]["endpoints"][0].pop("interval")
    with pytest.raises(ValidationError, match="'intervall' was unexpected"):
        OF_OPERATORS["ServiceMonitor"].validate(made)


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_selectors_find_what_they_are_for(folder: str) -> None:
    check_selectors(kustomized(folder))


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_pods_have_time_to_finish_no_rights_and_only_documented_secrets(folder: str) -> None:
    made = kustomized(folder)
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    drain_s = 0.0 if folder != "fleet" else read_fleet(KUBERNETES / "fleet" / "fleet.yaml").switching.drain_max_s
    for name, pod in pods(made).items():
        (container,) = pod["containers"]
        limit_s = [float(a.partition("=")[2]) for a in container["args"] if a.startswith("--shutdown-timeout=")]
        sleep_s = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        if (folder, name) == ("llm-d", "picker"):
            continue  # llm-d's own
        if "serve" in container["args"]:
            at = container["args"].index("--allowed-media-domains")
            assert container["args"][at + 1] == NO_HOST, "it would fetch from any host"
            assert {"name": "VLLM_MEDIA_URL_ALLOW_REDIRECTS", "value": "0"} in container["env"]
        if name != "planner":
            assert pod["terminationGracePeriodSeconds"] >= (limit_s or [drain_s])[0] + sleep_s + SLACK_S, name
            assert {"livenessProbe", "readinessProbe"} <= set(container), name
        assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert container["image"].startswith("registry.example/sloserve:")
    used = set(re.findall(r"'secret(?:Name|KeyRef)': (?:'|\{[^}]*'name': ')([\w-]+)", str(made)))
    assert used and {name for name in used if f"create secret generic {name} " not in page} == set()


@pytest.mark.slow
def test_eight_gpus_have_their_ranks_and_memory_between_them() -> None:
    made = by_kind(kustomized("tp8"))
    pod = made["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert "--tensor-parallel-size=8" in container["args"]
    assert (
        container["resources"]["limits"]["nvidia.com/gpu"]
        == "8"
        == container["resources"]["requests"]["nvidia.com/gpu"]
    )
    shm = {volume["name"]: volume for volume in pod["volumes"]}["shm"]
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "32Gi"}
    assert made["PersistentVolumeClaim"]["spec"]["resources"]["requests"]["storage"] == "1Ti"


@pytest.mark.slow
def test_the_pool_the_picker_and_the_settings_of_llm_d_fit_each_other() -> None:
    made = kustomized("llm-d")
    named = {(one["kind"], one["metadata"]["name"]): one for one in made}
    pool, server = named["InferencePool", "sloserve"]["spec"], named["Deployment", "sloserve"]["spec"]
    assert server["replicas"] == 2
    assert pool["targetPorts"] == [{"number": server["template"]["spec"]["containers"][0]["ports"][0]["containerPort"]}]
    ref = pool["endpointPickerRef"]
    assert ref["port"]["number"] in [port["port"] for port in named["Service", ref["name"]]["spec"]["ports"]]
    picker = named["Deployment", "picker"]["spec"]["template"]["spec"]["containers"][0]
    assert "--pool-name=sloserve" in picker["args"]
    configs = {name.rsplit("-", 1)[0]: one["data"] for (kind, name), one in named.items() if kind == "ConfigMap"}
    plugins = yaml.safe_load(configs["picker-config"]["picker-config.yaml"])
    (profile,) = plugins["schedulingProfiles"]
    assert {one["pluginRef"] for one in profile["plugins"]} <= {one["type"] for one in plugins["plugins"]}
    objectives = {name for kind, name in named if kind == "InferenceObjective"}
    assert set(yaml.safe_load(configs["sloserve-settings"]["serve.yaml"])["objectives"]) == objectives
    backends = [ref for rule in named["HTTPRoute", "sloserve"]["spec"]["rules"] for ref in rule["backendRefs"]]
    assert all(("InferencePool", ref["name"]) in named for ref in backends)


@pytest.mark.slow
def test_the_pool_the_picker_and_its_file_fit_each_other() -> None:
    made = kustomized("picker")
    named = {(one["kind"], one["metadata"]["name"]): one.get("spec") for one in made}
    pool, service = named["InferencePool", "sloserve"], named["Service", "picker"]
    file = read_picker(KUBERNETES / "picker" / "picker-file.yaml")
    (container,) = named["Deployment", "picker"]["template"]["spec"]["containers"]
    listen = file.listen
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert ports == {"grpc": listen.port, "health": listen.health_port, "metrics": listen.metrics_port}
    assert {probe["grpc"]["port"] for name, probe in container.items() if name.endswith("Probe")} == {
        listen.health_port
    }
    assert pool["endpointPickerRef"]["port"]["number"] in [one["port"] for one in service["ports"]]
    servers = named["Service", str(file.servers.dns)]
    assert servers["clusterIP"] == "None" and servers["selector"] == pool["selector"]["matchLabels"]
    assert pool["targetPorts"] == [{"number": file.servers.port}]
    assert container["args"][-1] == "/etc/sloserve/picker.yaml"
    configs = {
        name.rsplit("-", 1)[0]: one["data"] for (kind, name), one in _objects(made).items() if kind == "ConfigMap"
    }
    assert "picker.yaml" in configs["picker-file"] and configs["sloserve-model"]["MODEL"] in file.models


def _objects(made: list[Any]) -> dict[tuple[str, str], Any]:
    return {(one["kind"], one["metadata"]["name"]): one for one in made}


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["base", "fleet"])
def test_a_deployment_can_show_its_live_page(folder: str) -> None:
    """The routes of the page do not exist without the admin key."""
    shown = {
        name
        for name, pod in pods(kustomized(folder)).items()
        for of in pod["containers"][0]["env"]
        if of["name"] == "SLOSERVE_ADMIN_KEY" and of["valueFrom"]["secretKeyRef"]["key"] == "key"
    }
    assert shown == {"sloserve" if folder == "base" else "gateway"}


@pytest.mark.slow
def test_the_fleet_has_a_host_for_each_agent_and_a_door_where_it_listens() -> None:
    fleet = read_fleet(KUBERNETES / "fleet" / "fleet.yaml", to_run=True)
    made = {(one["kind"], one["metadata"]["name"]): one.get("spec") for one in kustomized("fleet")}
    agents, service = made["StatefulSet", "agents"], made["Service", "agents"]
    (port,) = agents["template"]["spec"]["containers"][0]["ports"]
    names = [f"agents-{number}" for number in range(agents["replicas"])]
    at = f"{agents['serviceName']}.default.svc.cluster.local:{port['containerPort']}"
    assert {name: host.door for name, host in fleet.hosts.items()} == {name: f"http://{name}.{at}" for name in names}
    assert service["publishNotReadyAddresses"] and service["clusterIP"] == "None"


@pytest.mark.slow
def test_settings_pass_their_check_and_flags_exist() -> None:
    from typer.testing import CliRunner

    from sloserve.cli import app

    for folder in ("base", "llm-d"):
        checked = CliRunner().invoke(app, ["check-config", str(KUBERNETES / folder / "serve.yaml")])
        assert checked.exit_code == 0, checked.output
    started = [pod["containers"][0]["args"] for pod in pods(kustomized("fleet")).values()]
    assert {arguments[1] for arguments in started} == {"gateway", "planner", "agent"}
    for arguments in started:
        shown = CliRunner().invoke(app, [*arguments[:2], "--help"]).output
        flags = {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}
        assert {flag for flag in flags if flag not in shown} == set(), arguments


@pytest.mark.slow
def test_the_recipe_of_the_image_is_clean_and_knows_the_extras() -> None:
    import tomllib

    for name in ("Dockerfile", "Dockerfile.vllm"):
        linted = tool("hadolint", str(DEPLOY / name))
        assert linted.returncode == 0, linted.stdout
    text = (DEPLOY / "Dockerfile").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {name for group in re.findall(r'"\.\[([\w,]+)\]"', text) for name in group.split(",")} <= set(extras)
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text()
    assert (DEPLOY / "Dockerfile.vllm.dockerignore").read_text() == ignored
    kept = re.findall(r"^!(\S+)", ignored, re.MULTILINE)
    assert [name for name in kept if not (ROOT / name).exists()] == []
    assert {"pyproject.toml", "CMakeLists.txt", "csrc", "sloserve", "README.md", "LICENSE"} <= set(kept)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in (DEPLOY / "systemd").iterdir()))
def test_systemd_accepts_the_units(name: str, tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / name).read_text()
    assert text.count("/opt/sloserve/bin/sloserve ") == 1
    unit = tmp_path / name
    unit.write_text(text.replace("/opt/sloserve/bin/sloserve ", "/bin/true "))
    found = tool("systemd-analyze", "verify", str(unit))
    assert found.returncode == 0 and found.stderr == ""
    limit = re.search(r"--shutdown-timeout (\d+)", text)
    stop = re.search(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert stop and (limit is None or int(stop[1]) >= int(limit[1]) + SLACK_S)


def test_compose_mounts_files_that_exist_and_opens_ports_on_this_machine_only() -> None:
    folder = DEPLOY / "compose"
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    assert set(services) == {"sloserve", "prometheus", "grafana"}
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        for mount in service["volumes"]:
            assert not mount.startswith(".") or (folder / mount.split(":")[0]).exists(), mount
    source = yaml.safe_load((folder / "prometheus.yaml").read_text())
    assert source["scrape_configs"][0]["static_configs"][0]["targets"] == ["sloserve:8000"]
