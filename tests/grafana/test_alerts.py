"""The alerts ask only for what a server shows, and each has a place in the docs; promtool tests when they fire."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from sloserve.core.predicted import LEVELS
from tests.deploy.rule_objects import SOURCE, made_from

ROOT = Path(__file__).parents[2]
SERIES = ROOT / "tests" / "deploy" / "prometheus" / "sloserve.test.yaml"
PAGE = ROOT / "docs" / "alerts.md"
RULES = [rule for group in yaml.safe_load(SOURCE.read_text())["groups"] for rule in group["rules"]]
ALERTS = [rule for rule in RULES if "alert" in rule]
OF_A_SCRAPE = {"namespace", "job", "instance"}
"""Labels that Prometheus or its operator adds."""


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run promtool; the test is skipped without it."""
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("NOT TESTED: the alerts need promtool (Debian's package prometheus), which is not installed")
    return subprocess.run([path, *arguments], capture_output=True, text=True, timeout=120, check=False)


def test_promtool_accepts_the_rules() -> None:
    checked = promtool("check", "rules", str(SOURCE))
    assert checked.returncode == 0 and f"{len(RULES)} rules found" in checked.stdout, checked.stdout + checked.stderr


def test_prometheus_of_compose_reads_the_rules(tmp_path: Path) -> None:
    compose = ROOT / "deploy" / "compose"
    mounts = yaml.safe_load((compose / "compose.yaml").read_text())["services"]["prometheus"]["volumes"]
    here, there, _ = next(mount for mount in mounts if "rules" in mount).split(":")
    settings = tmp_path / "prometheus.yml"
    settings.write_text((compose / "prometheus.yaml").read_text().replace(there, str((compose / here).resolve())))
    checked = promtool("check", "config", str(settings))
    assert checked.returncode == 0 and f"{len(RULES)} rules found" in checked.stdout, checked.stdout + checked.stderr


@pytest.mark.slow
def test_each_alert_fires_and_does_not_fire_as_its_series_say() -> None:
    tested = promtool("test", "rules", str(SERIES))
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.slow
def test_each_alert_has_series_that_fire_it_and_series_that_do_not() -> None:
    tests = [one for test in yaml.safe_load(SERIES.read_text())["tests"] for one in test.get("alert_rule_test", [])]
    fired = {one["alertname"] for one in tests if one["exp_alerts"]}
    named = {alert["alert"] for alert in ALERTS}
    assert fired == named == {one["alertname"] for one in tests}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_each_alert_says_how_urgent_it_is_what_it_is_and_what_to_do(alert: dict[str, Any]) -> None:
    assert set(alert["labels"]) == {"severity"} and alert["labels"]["severity"] in ("critical", "warning")
    notes = alert["annotations"]
    assert set(notes) == {"summary", "description", "runbook_url"}
    assert notes["summary"].endswith(".") and notes["description"].rstrip().endswith(".")
    assert notes["runbook_url"] == f"docs/alerts.md#{alert['alert'].lower()}"
    section = PAGE.read_text().split(f"\n## {alert['alert']}\n")[1].split("\n## ")[0]
    assert section.strip().startswith(f"*{alert['labels']['severity'].capitalize()}.*")


def test_the_page_describes_no_alert_that_does_not_exist() -> None:
    assert re.findall(r"^## (\w+)$", PAGE.read_text(), re.MULTILINE) == [alert["alert"] for alert in ALERTS]


def _grouped_by(rule: dict[str, Any]) -> set[str]:
    """Labels by which a rule groups what it asks for."""
    return set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", rule["expr"]))))


def _samples(labels: set[str]) -> list[list[str]]:
    """The labels of a recorded series as text, once for each quantile where it has one."""
    others = [f'{name}=""' for name in sorted(labels - {"quantile"})]
    levels = [[f'quantile="{level:g}"'] for level in LEVELS] if "quantile" in labels else [[]]
    return [[*others, *level] for level in levels]


def recorded_series() -> str:
    """Return what the rules record as a scrape, with the labels that they keep."""
    return "".join(
        f"{rule['record']}{{{','.join(labels)}}} 1\n"
        for rule in RULES
        if "record" in rule
        for labels in _samples(_grouped_by(rule))
    )


def test_labels_in_texts_are_labels_of_the_alert() -> None:
    for alert in ALERTS:
        used = set(re.findall(r"\$labels\.(\w+)", str(alert["annotations"])))
        recorded = [rule for rule in RULES if rule.get("record", "no record") in alert["expr"]]
        kept = set().union(*map(_grouped_by, [alert, *recorded]))
        assert used <= kept | OF_A_SCRAPE, alert["alert"]


def test_what_is_made_from_the_rules_is_up_to_date() -> None:
    stale = [path for path, text in made_from(SOURCE.read_text()).items() if path.read_text() != text]
    assert stale == [], "python -m tests.deploy.rule_objects"
