"""What scripts and shells use of the command: JSON in place of tables, and completion."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import Result
from typer.testing import CliRunner

from sloserve.cli import app
from sloserve.core.errors import ConfigError
from tests import bounded
from tests.orphans import kill_with_children
from tests.ports import free_port

ROOT = Path(__file__).parents[2]


def ran(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


@pytest.mark.slow
def test_listings_are_json_for_scripts() -> None:
    presets = json.loads(ran("presets", "--json").stdout)
    assert set(presets) >= {"agents", "chat"} and presets["chat"].startswith("Chat, read as it streams")
    policies = json.loads(ran("policies", "--json").stdout)
    assert "edf" in policies["servers"] and "orca" in policies["experiments"]
    assert all(text for names in policies.values() for text in names.values())
    edf = json.loads(ran("policies", "edf", "--json").stdout)
    assert {"name": "late_last", "kind": "bool", "default": True}.items() <= edf["options"][0].items()


@pytest.mark.slow
def test_workloads_and_keys_are_json_for_scripts() -> None:
    workloads = json.loads(ran("workloads", "--json").stdout)
    assert list(workloads) == ["workload", "tasks", "of_a_fleet", "experiment", "profile"]
    assert "h100-llama3-8b" in workloads["profile"] and workloads["workload"]["voice"].startswith("spoken chats")
    marked = workloads["profile"]["b200x8-deepseek-v4-pro"]
    assert marked.startswith("derived, ") and "too short" in marked and workloads["profile"]["h100-llama3-8b"] == ""
    key = json.loads(ran("fleet", "key", "--json").stdout)
    assert key["key"].startswith("sloserve-") and key["hash"].startswith("sha256:")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["andes", "auto", "econo", "priority", "qlm", "sa", "sjf", "sarathi", "chaos"])
def test_each_policy_can_be_described_in_json(name: str) -> None:
    assert json.loads(ran("policies", name, "--json").stdout)["name"] == name


@pytest.mark.slow
def test_who_simulates_on_a_derived_profile_sees_its_marker(tmp_path: Path) -> None:
    flags = ["--workload", "sharegpt-poisson", "--engine", "model", "--policy", "edf", "--max-requests", "20"]
    for profile, marker in (("b200-gpt-oss-120b", "derived, "), ("h100-llama3-8b", None)):
        out = tmp_path / profile
        done = ran("simulate", *flags, "--profile", profile, "--rps", "5", "--seeds", "1", "--out", str(out))
        settings = json.loads((out / "result.json").read_text())["settings"]
        if marker is None:
            assert "derived" not in done.stdout and "profile_marker" not in settings
        else:
            assert f"{profile} ({marker}" in " ".join(done.stdout.split())
            assert settings["profile_marker"].startswith(marker)


@pytest.mark.slow
def test_a_simulation_prints_its_result_and_shows_tables_beside_it(tmp_path: Path) -> None:
    flags = ["--workload", "sharegpt-poisson", "--engine", "model", "--policy", "edf", "--max-requests", "20"]
    done = ran("simulate", *flags, "--rps", "5", "--seeds", "1", "--out", str(tmp_path), "--json")
    assert json.loads(done.stdout) == json.loads((tmp_path / "result.json").read_text())
    assert "wrote" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("view", [{"rows": {}}, {"fleet": True, "rows": {"a": 5}}, {"engines": [1], "rows": {}}])
def test_a_view_of_another_version_is_one_line(view: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOSERVE_ADMIN_KEY", "key")
    monkeypatch.setattr("sloserve.client.watching.watch", lambda *_: iter([view]))
    with pytest.raises(ConfigError, match="http://x sends a view that this version of sloserve cannot show") as caught:
        ran("status", "--url", "http://x")
    assert "\n" not in str(caught.value)


def completed(words: str) -> set[str]:
    env = {"_SLOSERVE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = CliRunner().invoke(app, [], prog_name="sloserve", env=env)
    return set(done.stdout.split())


@pytest.mark.slow
def test_a_shell_completes_commands_flags_and_names() -> None:
    assert completed("sloserve ch") == {"check-config"}
    assert {"--slo-config", "--swap-space-gib", "--log-format"} <= completed("sloserve serve --")
    assert completed("sloserve serve --policy sj") == {"sjf"}
    assert completed("sloserve serve --preset chat") == {"chat", "chat-and-jobs"}
    assert completed("sloserve schema pro") == {"profile"}
    assert completed("sloserve serve --log-format j") == {"json"}


@pytest.mark.slow
def test_a_fleet_logs_json_alone(tmp_path: Path) -> None:
    file, port = tmp_path / "fleet.yaml", free_port()
    file.write_text(
        "models: {chat: {model: m/chat, profile: h100-llama3-8b}}\nhosts: {n: {device: h100, devices: 1}}\n"
    )
    command = [sys.executable, "-m", "sloserve.cli", "fleet", str(file), "--port", str(port), "--log-format", "json"]
    command += ["--engine-module", "tests.fleet.stand_in.server"]
    fleet = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert fleet.stdout is not None
    try:
        lines = []
        with bounded.within("the fleet to be ready"):
            while not lines or not lines[-1]["message"].startswith("ready"):
                lines.append(json.loads(fleet.stdout.readline()))
        fleet.send_signal(signal.SIGTERM)
        with bounded.within("the end of the fleet after SIGTERM"):
            lines += [json.loads(line) for line in fleet.stdout]
            assert fleet.wait() == 0
    finally:
        kill_with_children(fleet)
        fleet.stdout.close()
    assert {one["level"] for one in lines} == {"INFO"} and all(one["timestamp"] for one in lines)
    agents = [log for log in (tmp_path / "fleet.state").rglob("*.log") if "agent" in log.name]
    assert agents and all(json.loads(line) for log in agents for line in log.read_text().splitlines())


@pytest.mark.whole
@pytest.mark.vllm
def test_a_server_logs_json_alone_engine_included() -> None:
    port = free_port()
    command = [sys.executable, "-m", "sloserve.cli", "serve", "builtin:tiny", "--port", str(port)]
    command += ["--policy", "edf", "--log-format", "json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    try:
        lines = []
        with bounded.within("the server to be ready", 200.0):
            while not lines or lines[-1]["message"] != "ready":
                lines.append(json.loads(server.stdout.readline()))
        assert lines[-1]["how_to_try"].startswith("sloserve is ready on ")
        assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
        server.send_signal(signal.SIGTERM)
        with bounded.within("the end of the server after SIGTERM"):
            lines += [json.loads(line) for line in server.stdout]
            assert server.wait() == 0
    finally:
        kill_with_children(server)
        server.stdout.close()
    settings = next(one["settings"] for one in lines if "settings" in one)
    assert settings["policy"] == {"value": "edf", "origin": "--policy"}
    assert len({one["process"] for one in lines}) >= 2  # the API server and the engine
    assert any(one["logger"] == "uvicorn.access" and "/health" in one["message"] for one in lines)
