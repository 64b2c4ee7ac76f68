"""The schemas of configs/schemas are those that the code makes; each example names its own and agrees with it."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from typer.testing import CliRunner

from sloserve.cli import app, registered
from sloserve.cli.schema_command import schema_text
from sloserve.core.errors import ConfigError
from sloserve.core.files.marked_yaml import parse_yaml
from sloserve.estimator.step_time.profile import load_profile
from sloserve.fleet.file import parse_fleet
from sloserve.fleet.gateway.keys import KeysFile
from sloserve.scheduler.server_keys import ServerKeysFile
from sloserve.scheduler.settings import read_settings
from sloserve.sim.workloads.slo_file import parse_slos
from tests.docs.pages import ROOT

KINDS = registered.names(registered.SCHEMAS)
FOLDER = ROOT / "configs" / "schemas"
CHART_SCHEMA = ROOT / "deploy" / "helm" / "sloserve" / "values.schema.json"
EXAMPLES = sorted((ROOT / "configs").glob("*.yaml"))
SHIPPED = {
    "profile": sorted(
        file for root in ("sloserve", "benchmarks") for file in ROOT.glob(f"{root}/estimator/profiles/*.yaml")
    ),
    "settings": sorted((ROOT / "sloserve" / "scheduler" / "presets").glob("*.yaml")),
}
FLEET = "models: {m: {profile: h100-llama3-8b%s}}\nhosts: {a: {device: h100, devices: %s}}\n%s"


@cache
def validator(kind: str) -> Any:
    from jsonschema import Draft7Validator

    schema = json.loads((FOLDER / f"{kind}.json").read_text())
    Draft7Validator.check_schema(schema)
    return Draft7Validator(schema)


def faults(kind: str, text: str) -> list[str]:
    return [error.message for error in validator(kind).iter_errors(parse_yaml(text, "f.yaml").plain())]


@pytest.mark.parametrize("kind", KINDS)
def test_a_schema_is_what_the_code_makes(kind: str, update_docs: bool) -> None:
    path = FOLDER / f"{kind}.json"
    if update_docs:
        path.parent.mkdir(exist_ok=True)
        path.write_text(schema_text(kind))
    assert path.read_text() == schema_text(kind), "run pytest tests/docs --update-docs"


def _without_texts(value: Any) -> Any:
    """Return a schema without its descriptions, which helm shows nobody."""
    if isinstance(value, dict):
        return {key: _without_texts(of) for key, of in value.items() if key != "description" or not isinstance(of, str)}
    return [_without_texts(of) for of in value] if isinstance(value, list) else value


def chart_schema(written: str) -> str:
    """Return the chart's schema: what is written by hand in it, and after that the definitions of the settings."""
    settings = _without_texts(json.loads(schema_text("settings")))
    definitions = settings.pop("definitions") | {"settings": {key: settings[key] for key in settings if key[0] != "$"}}
    by_hand, _, _ = written.partition(',\n    "settings of sloserve follow": true')
    generated = "".join(f',\n    "{name}": {json.dumps(of)}' for name, of in sorted(definitions.items()))
    return f'{by_hand},\n    "settings of sloserve follow": true{generated}\n  }}\n}}\n'


def test_the_chart_s_schema_has_the_settings(update_docs: bool) -> None:
    """helm refuses a wrong setting before anything is applied."""
    if update_docs:
        CHART_SCHEMA.write_text(chart_schema(CHART_SCHEMA.read_text()))
    text = CHART_SCHEMA.read_text()
    assert text == chart_schema(text), "run pytest tests/docs --update-docs"
    assert json.loads(text)["properties"]["settings"] == {"$ref": "#/definitions/settings"}


def test_the_command_prints_them_and_names_the_kinds() -> None:
    assert CliRunner().invoke(app, ["schema", "slo"]).output == (FOLDER / "slo.json").read_text()
    error = CliRunner().invoke(app, ["schema", "setings"]).exception
    assert str(error) == (
        "schema 'setings' is unknown; known here: fleet, keys, picker, profile, router, server_keys, settings, slo; "
        "did you mean 'settings'?"
    )


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_names_its_schema_and_agrees_with_it(example: Path) -> None:
    named = re.match(r"# yaml-language-server: \$schema=schemas/(\w+)\.json\n", example.read_text())
    assert named is not None and named[1] in KINDS
    assert faults(named[1], example.read_text()) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHIPPED)
def test_what_is_shipped_agrees_with_its_schema(kind: str) -> None:
    assert len(SHIPPED[kind]) >= 4
    assert {path.name: wrong for path in SHIPPED[kind] if (wrong := faults(kind, path.read_text()))} == {}


def _settings(text: str) -> None:
    if read_settings(yaml.safe_load(text))[1]:
        raise ConfigError(text)


def _profile(text: str, folder: Path) -> None:
    (folder / "p.yaml").write_text(text)
    load_profile(folder / "p.yaml")


WRONG = {
    "settings": ["polcy: edf", "plan_share: 2", "admission: {mode: cup}", "admission: {max_waiting: 0}", "seed: true",
                 "classes: {}", "classes: {a: {ttft_ms: 5}}", "classes: {a: {rank: 1, ttft_ms: -1}}",
                 "http3: {port: 99999}", "tenant_headers: x"],
    "fleet": [FLEET % ("", 0, ""), FLEET % (", shar: 1", 1, ""), FLEET % ("", 1, "switching: {min_active_s: -1}"),
              FLEET % ("", 1, "gateway: {port: 70000}"), FLEET % ("", 1, "modls: {}"), "models: {}\nhosts: {}",
              FLEET % ("", 1, "settings: {plan_share: 2}")],
    "slo": ["classes: {}", "clases: {a: {}}", "classes: {a: {ttft_ms: 0}}", "classes: {a: {tds: slow}}",
            "classes: {a: {rank: 1.5}}", "classes: {a: {scale: 2}}", "classes: {a: {share: 1.5}}"],
    "keys": ["tenants: {}", "tenant: {}", "tenants: {a: {keys: []}}", "tenants: {a: {keys: [x], quota: {lines: -1}}}"],
    "server_keys": ["tenants: {}", "tenants: {a: {keys: [x], quota: {lines: 1}}}", "tenants: {a: {keys: []}}"],
}  # fmt: skip
RIGHT = {
    "settings": ["{}", "policy: edf", "admission: {max_waiting: {batch: 5}}", "classes: {a: {rank: 1, tds: null}}"],
    "fleet": [FLEET % ("", 1, ""), FLEET % ("", 1, "settings: {classes: {a: {rank: 1}}}")],
    "slo": ["classes: {a: {tds: reading}}", "classes: {a: {tds: 4, rank: 3}}\ndefault: a"],
    "keys": ["tenants: {a: {keys: ['sha256:" + 64 * "0" + "'], class: batch}}"],
    "server_keys": ["tenants: {a: {keys: ['sha256:" + 64 * "0" + "'], quota: {requests: null}}}"],
}
READERS = {
    "settings": _settings,
    "fleet": parse_fleet,
    "slo": lambda text: parse_slos(parse_yaml(text, "f"), "f"),
    "keys": lambda text: KeysFile.model_validate(yaml.safe_load(text)),
    "server_keys": lambda text: ServerKeysFile.model_validate(yaml.safe_load(text)),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", READERS)
def test_a_schema_and_the_reader_agree_on_what_is_wrong(kind: str) -> None:
    for text in WRONG[kind]:
        assert faults(kind, text), text
        with pytest.raises((ConfigError, ValidationError)):
            READERS[kind](text)
    for text in RIGHT[kind]:
        assert faults(kind, text) == [], text
        READERS[kind](text)


@pytest.mark.slow
def test_a_profile_without_a_needed_figure_is_wrong_for_both(tmp_path: Path) -> None:
    whole = (SHIPPED["profile"][0]).read_text()
    for lacking in ("kv_capacity_tokens", "grid", "latency"):
        values = yaml.safe_load(whole)
        del values[lacking]
        text = yaml.safe_dump(values)
        assert faults("profile", text) == [f"'{lacking}' is a required property"]
        with pytest.raises(ConfigError, match=lacking):
            _profile(text, tmp_path)
