"""The objects that kubectl and helm make of ``deploy/``, and the schemas against which they are checked offline."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from jsonschema import Draft202012Validator

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
KUBERNETES: Final = DEPLOY / "kubernetes"
CHART: Final = DEPLOY / "helm" / "sloserve"
VERSIONS: Final = ("1.30", "1.34")
"""Versions of Kubernetes."""

OF_OPERATORS: Final = {
    kind: Draft202012Validator(json.loads((Path(__file__).parent / "schemas" / f"{kind.lower()}.json").read_text()))
    for kind in (
        "ServiceMonitor", "PrometheusRule", "ScaledObject", "InferencePool", "InferenceObjective", "HTTPRoute",
    )
}  # fmt: skip
"""Schemas of objects that are no part of Kubernetes itself."""


def tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the environment, else of the system; the test is skipped without it."""
    path = Path(sys.executable).parent / name
    found = str(path) if path.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"NOT TESTED: {name} is not installed")
    return subprocess.run([found, *arguments], capture_output=True, text=True, timeout=120, check=False)


def kustomized(folder: str) -> list[Any]:
    """Return what kubectl makes of a folder of manifests."""
    made = tool("kubectl", "kustomize", str(KUBERNETES / folder))
    assert made.returncode == 0, made.stderr
    return list(yaml.safe_load_all(made.stdout))


def templated(values: str | None = None, *flags: str) -> list[Any]:
    """Return what helm makes of the chart.

    Args:
        values: Name of the file in the chart's folder ``ci``; ``None`` for the chart's own values.
        flags: Further flags.
    """
    files = [] if values is None else ["--values", str(CHART / "ci" / f"{values}-values.yaml")]
    made = tool("helm", "template", "mine", str(CHART), "--namespace", "llm", *files, *flags)
    assert made.returncode == 0, made.stderr
    return [one for one in yaml.safe_load_all(made.stdout) if one is not None]


def validate(objects: Iterable[Any]) -> None:
    """Check objects against the schemas of Kubernetes and of operators. Raises: the validators' errors."""
    import kubernetes_validate

    for one in objects:
        if one["kind"] in OF_OPERATORS:
            OF_OPERATORS[one["kind"]].validate(one)
            continue
        for version in VERSIONS:
            kubernetes_validate.validate(one, version, strict=True)


def pods(objects: Iterable[Any]) -> dict[str, Any]:
    """Return specifications of pods by the name of what makes them."""
    return {
        one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in objects if "template" in one.get("spec", {})
    }


def by_kind(objects: Iterable[Any]) -> dict[str, Any]:
    """Return the last object of each kind."""
    return {one["kind"]: one for one in objects}


def check_selectors(objects: Iterable[Any]) -> None:
    """Check that each selector finds what it is for."""
    objects = list(objects)
    labels = [one["spec"]["template"]["metadata"]["labels"] for one in objects if "template" in one.get("spec", {})]
    services = [one["metadata"]["labels"] for one in objects if one["kind"] == "Service"]
    names = {(one["kind"], one["metadata"]["name"]) for one in objects}
    for one in objects:
        spec = one.get("spec", {})
        if one["kind"] == "Service":
            assert any(spec["selector"].items() <= of.items() for of in labels), one
        elif one["kind"] in ("PodDisruptionBudget", "ServiceMonitor", "InferencePool"):
            sought, among = spec["selector"]["matchLabels"], services if one["kind"] == "ServiceMonitor" else labels
            assert any(sought.items() <= of.items() for of in among), one
        elif one["kind"] == "NetworkPolicy":
            assert any(spec["podSelector"]["matchLabels"].items() <= of.items() for of in labels), one
        elif one["kind"] == "ScaledObject":
            assert ("Deployment", spec["scaleTargetRef"]["name"]) in names, one
