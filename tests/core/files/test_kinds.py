"""Files that are given in place of a file of another kind."""

import gzip
import json
from pathlib import Path

import pytest

from sloserve.core.errors import ConfigError
from sloserve.core.files.kinds import KINDS, otherwise, reading

CONFIGS = Path(__file__).parents[3] / "configs"

SHIPPED = {
    "serve.yaml": "settings", "tenants.yaml": "settings", "fleet.yaml": "fleet", "fleet-tiny.yaml": "fleet",
    "fleet-joining.yaml": "fleet", "slo-10s.yaml": "slo", "slo-econoserve.yaml": "slo", "slo-reading.yaml": "slo",
    "keys.yaml": "keys", "keys-server.yaml": "server_keys", "router.yaml": "router", "cpu-tiny.yaml": "profile",
    "graded-answers.json": "grades",
}  # fmt: skip


@pytest.mark.parametrize("name", SHIPPED)
def test_each_example_is_known_by_its_keys(name: str) -> None:
    path, kind = CONFIGS / name, SHIPPED[name]
    assert otherwise(kind, KINDS[kind].what, path) is None
    others = {other: otherwise(other, KINDS[other].what, path) for other in KINDS if other != kind}
    if name == "keys-server.yaml":  # it is a fleet's file of keys as well
        assert others.pop("keys") is None
    told = f"{path}: this is {KINDS[kind].what}, not "
    assert {other for other, text in others.items() if text is None or not text.startswith(told)} == set()


WRITTEN = {
    "trace": "arrival_s,prompt_tokens,output_tokens\n0.0,5,6\n",
    "result": json.dumps({"sloserve_version": "1", "runs": [], "settings": {}}, indent=1),
    "requests": json.dumps({"ttfts": [0.1], "itls": [[]], "output_lens": [1]}),
    "length_model": json.dumps({"format": "f", "levels": [], "medians": [], "tasks": {}}),
    "examples": '{"output": "yes", "task": "chat"}\n{"output": "no", "task": "chat"}\n',
}


@pytest.mark.parametrize("kind", WRITTEN)
@pytest.mark.parametrize("packed", [False, True])
def test_results_traces_and_models_are_known_by_a_few_keys(kind: str, packed: bool, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(gzip.compress(WRITTEN[kind].encode()) if packed else WRITTEN[kind].encode())
    said = otherwise("settings", "settings", path)
    assert said == f"{path}: this is {KINDS[kind].what}, not settings; {KINDS[kind].remedy.format(path)}"


def test_a_long_file_is_known_by_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({"backend": "vllm", "itls": [], "ttfts": [0.123456] * 100_000}))
    assert "a result of a load generator" in str(otherwise("settings", "settings", path))


@pytest.mark.parametrize(
    "text",
    ["", "polcy: edf", "classes: {interactive: {ttft_ms: 5}}", "policy: edf\nsed: 1", "- 1", "\x00", "text, and text",
     "[", "classes: {a: {rank: 1}}\ntenant: 5"],
)  # fmt: skip
def test_a_file_with_a_mistake_or_of_no_kind_is_left_to_its_reader(text: str, tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(text)
    assert otherwise("settings", "settings", path) is None
    with pytest.raises(ConfigError, match="^mine$"), reading("settings", path):
        raise ConfigError("mine")


def test_a_reader_without_an_error_is_not_asked_and_a_missing_file_is_its_own_error(tmp_path: Path) -> None:
    with reading("settings", CONFIGS / "fleet.yaml"):
        pass
    with pytest.raises(ConfigError, match="^gone$"), reading("settings", tmp_path / "none"):
        raise ConfigError("gone")
