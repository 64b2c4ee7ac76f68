"""The Helm chart renders to objects that Kubernetes and the operators know, and refuses values that it does not know.

Nothing is applied to a cluster. ``make deploy-check`` fetches helm and promtool; without them the tests say NOT TESTED.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sloserve.fleet.run.live import NO_HOST
from tests.deploy.rendered import CHART, ROOT, by_kind, check_selectors, pods, templated, tool, validate
from tests.grafana.test_alerts import promtool

pytestmark = pytest.mark.slow
EXAMPLES = [None, *sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").glob("*-values.yaml"))]


def refused(*flags: str) -> str:
    """Return helm's words for values that it does not render."""
    made = tool("helm", "template", "mine", str(CHART), *flags)
    assert made.returncode != 0
    return made.stderr


@pytest.mark.parametrize("values", EXAMPLES)
def test_helm_finds_nothing_to_complain_of(values: str | None) -> None:
    files = [] if values is None else ["--values", str(CHART / "ci" / f"{values}-values.yaml")]
    linted = tool("helm", "lint", "--strict", str(CHART), *files)
    assert linted.returncode == 0, linted.stdout + linted.stderr


@pytest.mark.parametrize("values", EXAMPLES)
def test_kubernetes_and_the_operators_know_every_object_and_field(values: str | None) -> None:
    made = templated(values)
    validate(made)
    check_selectors(made)
    kinds = {one["kind"] for one in made}
    assert {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy", "ConfigMap"} <= kinds
    ((name, pod),) = pods(made).items()
    (container,) = pod["containers"]
    limit_s = next(int(a.partition("=")[2]) for a in container["args"] if a.startswith("--shutdown-timeout="))
    assert pod["terminationGracePeriodSeconds"] == limit_s + container["lifecycle"]["preStop"]["sleep"]["seconds"] + 10
    at = container["args"].index("--allowed-media-domains")
    assert container["args"][at + 1] == NO_HOST and all(a.startswith("--") for a in container["args"][at + 2 :])
    assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"], name
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize("values", EXAMPLES)
def test_settings_pass_the_server_s_own_check(values: str | None, tmp_path: Path) -> None:
    """Large numbers too, which helm may write as 8.64e+07."""
    from typer.testing import CliRunner

    from sloserve.cli import app

    path = tmp_path / "serve.yaml"
    path.write_text(by_kind(templated(values))["ConfigMap"]["data"]["serve.yaml"])
    checked = CliRunner().invoke(app, ["check-config", str(path)])
    assert checked.exit_code == 0, checked.output


def test_the_chart_and_kustomize_start_the_same_server() -> None:
    from tests.deploy.rendered import kustomized

    (helm,), (kubectl,) = (pods(made).values() for made in (templated(), kustomized("base")))
    theirs, ours = helm["containers"][0], kubectl["containers"][0]
    for key in ("ports", "startupProbe", "livenessProbe", "readinessProbe", "lifecycle", "resources", "volumeMounts"):
        assert theirs[key] == ours[key], key
    assert theirs["args"] == [argument.replace("$(MODEL)", "Qwen/Qwen3-8B") for argument in ours["args"]]
    assert {of["name"] for of in theirs["env"]} == {of["name"] for of in ours["env"]} - {"MODEL"}
    assert helm["terminationGracePeriodSeconds"] == kubectl["terminationGracePeriodSeconds"]


@pytest.mark.parametrize(
    ("hosts", "allowed"), [("a.example.org,b.example.org", ["a.example.org", "b.example.org"]), ("*", None)]
)
def test_the_chart_names_the_hosts_from_which_media_may_come(hosts: str, allowed: list[str] | None) -> None:
    ((_, pod),) = pods(templated(None, "--set", f"mediaDomains={{{hosts}}}")).items()
    (container,) = pod["containers"]
    follows = [one["value"] for one in container["env"] if one["name"] == "VLLM_MEDIA_URL_ALLOW_REDIRECTS"]
    if allowed is None:
        assert "--allowed-media-domains" not in container["args"] and not follows
    else:
        at = container["args"].index("--allowed-media-domains")
        assert container["args"][at + 1 : at + 3] == allowed and follows == ["0"]


def test_keys_are_made_unless_there_are_secrets() -> None:
    secrets = {one["metadata"]["name"] for one in templated() if one["kind"] == "Secret"}
    assert secrets == {"mine-sloserve-api-key", "mine-sloserve-admin-key"}
    made = templated("full")
    assert not any(one["kind"] == "Secret" for one in made)
    env = {of["name"]: of for of in pods(made)["mine-sloserve"]["containers"][0]["env"]}
    named = {name: of["valueFrom"]["secretKeyRef"]["name"] for name, of in env.items() if "valueFrom" in of}
    assert named == {"VLLM_API_KEY": "clients", "SLOSERVE_ADMIN_KEY": "operators", "HF_TOKEN": "hugging-face"}


def test_eight_gpus_have_their_ranks_and_memory_between_them() -> None:
    pod = pods(templated("tp8"))["mine-sloserve"]
    (container,) = pod["containers"]
    assert "--tensor-parallel-size=8" in container["args"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "32Gi"}} in pod["volumes"]
    cpu = pods(templated("cpu"))["mine-sloserve"]["containers"][0]
    assert not any("gpu" in resource for of in cpu["resources"].values() for resource in of)


def objective_rules(made: list[Any]) -> Any:
    """Return the rules of the PrometheusRule among the objects."""
    return by_kind(made)["PrometheusRule"]["spec"]


def test_objectives_and_runbooks_of_the_values_are_in_the_rules(tmp_path: Path) -> None:
    rules = objective_rules(templated("full"))
    alerts = [rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule]
    base = "https://runbooks.example/sloserve/alerts#"
    assert all(alert["annotations"]["runbook_url"] == base + alert["alert"].lower() for alert in alerts)
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(rules))
    series = [f'sloserve:slo_requests_total{{job="a", class="{name}"}}' for name in ("interactive", "batch")]
    recorded = "class:sloserve_objective:ratio"
    test = {
        "rule_files": [str(path)],
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": one, "values": "0+1x9"} for one in series],
                "promql_expr_test": [
                    {
                        "expr": recorded,
                        "eval_time": "5m",
                        "exp_samples": [
                            {"labels": f'{recorded}{{job="a", class="interactive"}}', "value": 0.99},
                            {"labels": f'{recorded}{{job="a", class="batch"}}', "value": 0.9},
                        ],
                    }
                ],
            }
        ],
    }
    tests = tmp_path / "test.yaml"
    tests.write_text(yaml.safe_dump(test))
    tested = promtool("test", "rules", str(tests))
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_the_rules_without_objectives_are_the_source_s() -> None:
    made = objective_rules(templated(None, "--set", "alerts.enabled=true"))
    assert made == yaml.safe_load((ROOT / "deploy" / "prometheus" / "sloserve.rules.yaml").read_text())


def test_servers_are_added_by_a_gauge_of_ours_that_prometheus_can_read(metrics_text: str) -> None:
    from tests.grafana.queries import check_dashboard

    made = by_kind(templated("full"))
    (trigger,) = made["ScaledObject"]["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    assert query == (
        'sum(sloserve:queue_requests{namespace="llm", job="mine-sloserve", class!~"batch|background"}) or vector(0)'
    )
    panel = {"title": "scale", "targets": [{"expr": query.replace('namespace="llm", ', ""), "legendFormat": ""}]}
    assert check_dashboard({"panels": [panel], "templating": {"list": []}}, metrics_text) == []
    assert "replicas" not in made["Deployment"]["spec"]
    assert made["Service"]["metadata"]["name"] == "mine-sloserve", "the operator's label job is the Service's name"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--set", "polcy=edf"], "polcy"),
        (["--set", "auth.adminKey=x"], "adminKey"),
        (["--set", "replicas=two"], "replicas"),
        (["--set", "sharedMemory=2GB"], "sharedMemory"),
        (["--set", "alerts.objectives.interactive=99"], "objectives"),
        (["--set", "settings.polcy=edf"], "polcy"),
        (["--set", "settings.plan_share=2"], "plan_share"),
        (["--set", "settings.admission.mode=cup"], "admission"),
        (["--set", "settings.classes.interactive.ttft_ms=-1"], "ttft_ms"),
        (["--set", "replicas=2"], "set modelCache.accessModes to [ReadWriteMany], or modelCache.enabled to false"),
    ],
)
def test_wrong_values_are_refused_by_their_name(flags: list[str], says: str) -> None:
    assert says in refused(*flags)


def test_notes_say_how_to_get_keys_and_the_page() -> None:
    made = tool("helm", "install", "mine", str(CHART), "--dry-run=client", "--namespace", "llm")
    assert made.returncode == 0, made.stderr
    notes = made.stdout.split("NOTES:")[1]
    assert re.search(r"get secret mine-sloserve-admin-key .*base64 -d", notes) and "/sloserve/" in notes


def test_each_value_is_in_the_schema_and_used() -> None:
    import json

    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    assert set(values) == set(schema) - {"global"}
    templates = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    for name, value in values.items():
        assert f".Values.{name}" in templates, name
        if isinstance(value, dict) and "properties" in schema[name]:
            assert set(value) == set(schema[name]["properties"]), name


def test_the_chart_has_the_package_s_version() -> None:
    import sloserve

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == sloserve.__version__
