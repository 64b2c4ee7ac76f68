"""What ``deploy/`` holds is what its tools accept, and its parts fit each other and what they start.

Nothing is started: the manifests are rendered by kubectl and checked against Kubernetes' schemas offline.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from sloserve.fleet.file import read_fleet

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
FOLDERS = ["base", "cpu", "fleet"]
VERSIONS = ["1.30", "1.34"]
OF_OPERATORS = {
    kind: Draft202012Validator(json.loads((Path(__file__).parent / "schemas" / f"{kind.lower()}.json").read_text()))
    for kind in ("ServiceMonitor", "PrometheusRule", "ScaledObject", "InferencePool")
}
"""Schemas of objects that are no part of Kubernetes itself."""
SLACK_S = 10
"""Docs: a grace period is ten seconds more than the time that requests have."""


def objects(folder: str) -> list[Any]:
    """What kubectl makes of a folder; a test is skipped without it."""
    if shutil.which("kubectl") is None:
        pytest.skip("NOT TESTED: the manifests need kubectl, which is not installed")
    command = ["kubectl", "kustomize", str(KUBERNETES / folder)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert made.returncode == 0, made.stderr
    return list(yaml.safe_load_all(made.stdout))


def tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program of the environment, else of the system; a test is skipped without it."""
    path = Path(sys.executable).parent / name
    found = str(path) if path.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"NOT TESTED: {name} is not installed")
    return subprocess.run([found, *arguments], capture_output=True, text=True, timeout=60, check=False)


def pods(made: list[Any]) -> dict[str, Any]:
    """Specifications of pods by the name of what makes them."""
    return {
        one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in made if "template" in one.get("spec", {})
    }


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_kubernetes_knows_every_object_and_field(folder: str) -> None:
    import kubernetes_validate

    made = objects(folder)
    for one in made:
        if one["kind"] in OF_OPERATORS:
            OF_OPERATORS[one["kind"]].validate(one)
            continue
        for version in VERSIONS:
            kubernetes_validate.validate(one, version, strict=True)
    kinds = {one["kind"] for one in made}
    assert {"Deployment", "Service", "PodDisruptionBudget", "ServiceMonitor", "ConfigMap"} <= kinds


def test_the_operator_would_refuse_a_mistyped_field_of_a_monitor() -> None:
    made = yaml.safe_load((KUBERNETES / "base" / "monitor.yaml").read_text())
    made["spec"]["endpoints"][0]["intervall"] = made["spec"]["endpoints"][0].pop("interval")
    with pytest.raises(ValidationError, match="'intervall' was unexpected"):
        OF_OPERATORS["ServiceMonitor"].validate(made)


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_selectors_find_what_they_are_for(folder: str) -> None:
    made = objects(folder)
    labels = [one["spec"]["template"]["metadata"]["labels"] for one in made if "template" in one.get("spec", {})]
    services = [one["metadata"]["labels"] for one in made if one["kind"] == "Service"]
    for one in made:
        if one["kind"] == "Service":
            assert any(one["spec"]["selector"].items() <= of.items() for of in labels), one
        elif one["kind"] in ("PodDisruptionBudget", "ServiceMonitor"):
            sought, among = one["spec"]["selector"]["matchLabels"], labels if "Pod" in one["kind"] else services
            assert any(sought.items() <= of.items() for of in among), one


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_pods_have_time_to_finish_no_rights_and_only_documented_secrets(folder: str) -> None:
    made = objects(folder)
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    drain_s = 0.0 if folder != "fleet" else read_fleet(KUBERNETES / "fleet" / "fleet.yaml").switching.drain_max_s
    for name, pod in pods(made).items():
        (container,) = pod["containers"]
        limit_s = [float(a.partition("=")[2]) for a in container["args"] if a.startswith("--shutdown-timeout=")]
        sleep_s = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        if name != "planner":
            assert pod["terminationGracePeriodSeconds"] >= (limit_s or [drain_s])[0] + sleep_s + SLACK_S, name
            assert {"livenessProbe", "readinessProbe"} <= set(container), name
        assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert container["image"].startswith("registry.example/sloserve:")
    used = set(re.findall(r"'secret(?:Name|KeyRef)': (?:'|\{[^}]*'name': ')([\w-]+)", str(made)))
    assert used and {name for name in used if f"create secret generic {name} " not in page} == set()


@pytest.mark.slow
def test_the_fleet_has_a_host_for_each_agent_and_a_door_where_it_listens() -> None:
    fleet = read_fleet(KUBERNETES / "fleet" / "fleet.yaml", to_run=True)
    made = {(one["kind"], one["metadata"]["name"]): one.get("spec") for one in objects("fleet")}
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

    checked = CliRunner().invoke(app, ["check-config", str(KUBERNETES / "base" / "serve.yaml")])
    assert checked.exit_code == 0, checked.output
    started = [pod["containers"][0]["args"] for pod in pods(objects("fleet")).values()]
    assert {arguments[1] for arguments in started} == {"gateway", "planner", "agent"}
    for arguments in started:
        shown = CliRunner().invoke(app, [*arguments[:2], "--help"]).output
        flags = {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}
        assert {flag for flag in flags if flag not in shown} == set(), arguments


@pytest.mark.slow
def test_the_recipe_of_the_image_is_clean_and_knows_the_extras() -> None:
    import tomllib

    linted = tool("hadolint", str(DEPLOY / "Dockerfile"))
    assert linted.returncode == 0, linted.stdout
    text = (DEPLOY / "Dockerfile").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {name for group in re.findall(r'"\.\[([\w,]+)\]"', text) for name in group.split(",")} <= set(extras)
    kept = re.findall(r"^!(\S+)", (DEPLOY / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
    assert [name for name in kept if not (ROOT / name).exists()] == []
    assert {"pyproject.toml", "CMakeLists.txt", "csrc", "sloserve", "README.md", "LICENSE"} <= set(kept)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sloserve.service", "sloserve-fleet-agent@.service"])
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
