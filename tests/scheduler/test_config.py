"""Settings from flags, file and --additional-config: who wins, who wrote what, and what every mistake gets to read."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sloserve import cli
from sloserve.core.errors import ConfigError
from sloserve.scheduler.config import Effective, presets, read_sources, settle
from sloserve.scheduler.settings import PluginSettings, plugin_settings

CONFIGS = Path(__file__).parents[2] / "configs"
EXAMPLES = sorted(CONFIGS.glob("serve*.yaml"))

Made = Callable[..., Effective]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """Settles flags, the text of a file ``f.yaml`` and a section of the additional config."""
    monkeypatch.chdir(tmp_path)

    def make(text: str | None = None, section: Any = None, **flags: Any) -> Effective:
        file = Path("f.yaml")
        if text is not None:
            file.write_text(text)
        additional = {} if section is None else {"sloserve": section, "other": 1}
        return settle(read_sources(None if text is None else file, flags), additional)

    return make


def origins(effective: Effective) -> dict[str, str]:
    return {name: origin for name, _, origin in effective.rows() if origin != "default"}


def test_nothing_written_means_defaults(made: Made) -> None:
    effective = made()
    assert (effective.settings, effective.section, origins(effective)) == (PluginSettings(), {}, {})


def test_a_flag_beats_the_file_and_others_add_to_it(made: Made) -> None:
    text = "policy: sjf\nseed: 3\nadmission:\n  mode: none\n  max_waiting: 9\n"
    effective = made(text, {"aged_share": 0.5}, admission="cap", shadow_policy="sjf")
    settings = effective.settings
    assert (settings.policy, settings.seed, settings.aged_share) == ("sjf", 3, 0.5)
    assert (settings.admission.mode, settings.admission.max_waiting, settings.shadow_policy) == ("cap", 9, "sjf")
    assert origins(effective) == {
        "policy": "f.yaml:1", "seed": "f.yaml:2", "admission.mode": "--admission",
        "admission.max_waiting": "f.yaml:5", "aged_share": "--additional-config", "shadow_policy": "--shadow-policy",
    }  # fmt: skip
    assert plugin_settings({"sloserve": json.loads(json.dumps(effective.section))}) == settings


def test_another_policy_does_not_get_the_options_of_the_files(made: Made) -> None:
    text = "policy: edf\npolicy_options:\n  preempt: false\n"
    assert made(text).settings.policy_options == {"preempt": False}
    assert origins(made(text)) == {"policy": "f.yaml:1, f.yaml:2"}
    assert made(text).rows()[0][1] == "edf:preempt=false"
    assert (made(text, policy="sjf").settings.policy, made(text, policy="sjf").settings.policy_options) == ("sjf", {})


def test_one_cap_of_the_flag_replaces_caps_by_class(made: Made) -> None:
    text = "admission: {mode: cap, max_waiting: {batch: 5}}"
    assert made(text).settings.admission.cap("batch") == 5
    assert made(text, max_waiting=7).settings.admission.max_waiting == 7


def test_saying_the_same_twice_is_no_contradiction(made: Made) -> None:
    effective = made("seed: 3", {"seed": 3, "policy": "edf"}, policy="edf")
    assert origins(effective) == {"policy": "--policy", "seed": "f.yaml:1"}


@pytest.mark.parametrize(
    ("text", "section", "flags", "message"),
    [
        (
            None, {"policy": "sjf"}, {"policy": "edf"},
            "--policy edf, but --additional-config has sloserve.policy 'sjf'; give one",
        ),
        (
            "admission:\n  mode: cap", {"admission": {"mode": "none"}}, {},
            "f.yaml:2:3: admission.mode: 'cap', but --additional-config has sloserve.admission.mode 'none'; give one",
        ),
        (
            "admission: {max_waiting: 5}", {"admission": {"max_waiting": {"batch": 5}}}, {},
            "f.yaml:1:13: admission.max_waiting: 5, but --additional-config has "
            "sloserve.admission.max_waiting.batch 5; give one",
        ),
        (None, [], {}, "--additional-config: sloserve: [] is not a mapping of settings"),
        (None, {"admission": {"mode": "capp"}}, {}, "sloserve.admission.mode: 'capp' is not one of none, cap, predict"),
        (None, None, {"admission": "capp"}, "--admission: 'capp' is not one of none, cap, predict"),
        (None, None, {"policy": "edf:preempt"}, "--policy: policy 'edf:preempt': 'preempt' is not of the form"),
        (
            None, None, {"max_waiting": 5},
            "--max-waiting 5 has no effect while admission.mode is none; add --admission cap",
        ),
        (None, {"policy_options": {"x": 1}}, {"policy": "edf"}, "--policy: policy 'edf' has no option 'x'; it has: "),
        ("", None, {}, "f.yaml:1:1: is empty"),
        ("- 1", None, {}, "f.yaml:1:1: a list is not a mapping of settings: policy, policy_options"),
        ("seed: 1\nseed: 2", None, {}, "f.yaml:2:1: seed: given twice, first in line 1"),
        ("seed: [1\n", None, {}, "f.yaml:2:1: is not YAML"),
        ("polcy: {name: edf}", None, {}, "f.yaml:1:1: polcy: is unknown; known here: "),
        ("classes:\n  a: {ttft_ms: 1}", None, {}, "f.yaml:2:3: classes.a.rank: is missing; needed: a whole number"),
        (
            "classes: {batch: null, listener: null}", None, {},
            "f.yaml:1:24: classes.listener: null removes a class, and 'listener' is unknown; known here: priority, ",
        ),
        ("classes: {a: {rank: 1, ttft_ms: 1e9}}", None, {}, "f.yaml:1:24: classes.a.ttft_ms: 1000000000.0 is not"),
        ("classes: {}", None, {}, "f.yaml:1:1: classes: {} is not a mapping of at least one class name to settings"),
        ("classes: [a]", None, {}, "f.yaml:1:1: classes: ['a'] is not a mapping of at least one class name"),
        (
            "tenant_shares: {weights: {a: 0}}", None, {},
            "f.yaml:1:17: tenant_shares.weights: {'a': 0} is not a mapping of",
        ),
        ("seed: 2024-01-01", None, {}, "f.yaml:1:1: seed: datetime.date(2024, 1, 1) is not a whole number >= 0"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_place(
    made: Made, text: str | None, section: Any, flags: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        made(text, section, **flags)
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)


def test_every_mistake_is_told_at_once(made: Made) -> None:
    text = "seed: -1\ntenants:\n  acme: gold\nplan_share: 5e-2\nunknown_class: x\n"
    with pytest.raises(ConfigError) as refused:
        made(text, {"seed": 4, "max_body_bytes": 0}, policy="edff", shadow_policy="sjf:x=1")
    assert sorted(line.rpartition(": ")[0].split(": ")[0] for line in str(refused.value).splitlines()) == [
        "--policy", "--shadow-policy", "f.yaml:1:1", "f.yaml:1:1", "f.yaml:3:3", "f.yaml:5:1",
        "sloserve.max_body_bytes",
    ]  # fmt: skip


def test_missing_file() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot be read: No such file or directory"):
        read_sources(Path("nowhere.yaml"), {})


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_shipped_examples_are_valid(path: Path) -> None:
    effective = settle(read_sources(path, {}))
    assert origins(effective)["policy"].startswith(f"{path}:")


def test_the_full_example_has_every_setting_with_its_default() -> None:
    effective = settle(read_sources(CONFIGS / "serve.yaml", {}))
    assert effective.settings == PluginSettings()
    assert list(effective.section) == list(PluginSettings.model_fields)
    assert all(origin != "default" for _, _, origin in effective.rows())


def test_check_config_prints_values_with_their_origin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["sloserve", "check-config", str(CONFIGS / "serve.yaml"), "--shadow-policy", "sjf"]
    )
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert not exit_.value.code
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["shadow_policy", "sjf", "--shadow-policy"] in lines
    assert [line[0] for line in lines if line[-1].startswith(str(CONFIGS / "serve.yaml"))][-1] == "http3"


def test_check_config_for_machines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "f.yaml"

    def answer(text: str) -> tuple[int, Any]:
        file.write_text(text)
        monkeypatch.setattr(sys, "argv", ["sloserve", "check-config", "--json", str(file)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        return int(exit_.value.code or 0), json.loads(capsys.readouterr().out)

    status, good = answer("seed: 5")
    assert (status, good["settings"]["seed"], good["origins"]["seed"]) == (0, 5, f"{file}:1")
    status, bad = answer("seed: x\npolicy: edff")
    assert status == 2 and [line.split(": ")[0] for line in bad["errors"]] == [f"{file}:1:1", f"{file}:2:1"]


@pytest.mark.slow
def test_check_config_loads_nothing_heavy_and_puts_each_mistake_on_a_line(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text("seed: -1\npolicy: edff\n")
    code = (
        "import sys\nfrom sloserve import cli\nsys.argv = ['sloserve', 'check-config', 'f.yaml']\n"
        "try:\n    cli.main()\nfinally:\n"
        "    print([m for m in ('vllm', 'torch', 'matplotlib', 'scipy') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stdout) == (2, "[]\n")
    assert [line.split(": ")[:3] for line in found.stderr.splitlines()] == [
        ["sloserve", "f.yaml:1:1", "seed"], ["sloserve", "f.yaml:2:1", "policy"],
    ]  # fmt: skip


@pytest.mark.parametrize("name", sorted(presets()))
def test_a_preset_names_a_policy_and_the_usual_classes_with_targets_that_the_policy_reads(name: str) -> None:
    effective = settle(read_sources(None, {}, name))
    assert origins(effective)["policy"] == f"preset {name}"
    plain = {c.name: (c.rank, c.aged_after_s) for c in effective.settings.classes}
    assert plain.items() >= {c.name: (c.rank, c.aged_after_s) for c in PluginSettings().classes}.items()
    with_targets = [c.name for c in effective.settings.classes if c.targets]
    assert ("interactive" in with_targets) is (name != "agents") and (with_targets == []) is (name == "agents")
    assert effective.settings.policy == "auto"
    assert effective.settings.service_tiers == PluginSettings().service_tiers
    assert not effective.warnings()


def test_a_file_and_a_flag_win_over_a_preset(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(
        "policy: econo:sigmas=2\nclasses:\n  interactive: {ttft_ms: 2000}\n  vip: {rank: 0, ttft_ms: 100}\n"
    )
    effective = settle(read_sources(file, {"admission": "cap"}, "chat"))
    classes = effective.settings.classes
    assert (effective.settings.policy, effective.settings.admission.mode) == ("econo", "cap")
    assert (classes["interactive"].targets.ttft_s, classes["interactive"].targets.tpot_s) == (2.0, 0.05)
    assert origins(effective)["classes.interactive"] == f"preset chat, {file}:3"
    assert origins(effective)["classes.vip"] == f"{file}:4"
    assert settle(read_sources(file, {"policy": "andes"}, "chat")).settings.policy == "andes"
    with pytest.raises(ConfigError, match=r"--preset: 'chats' is not one of agents, chat, .*; did you mean 'chat'\?"):
        read_sources(None, {}, "chats")


def test_a_file_states_changes_of_the_classes_of_a_preset_and_null_removes_one(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("classes:\n  batch: {}\n  interactive: {tpot_ms: null}\n  priority: null\n  listener: null\n")
    effective = settle(read_sources(file, {}, "readers"))
    assert effective.settings.classes.names == ("interactive", "batch", "background")
    assert effective.settings.classes["interactive"].targets.stated == ("ttft_s", "tds")
    assert origins(effective) == {
        "policy": "preset readers", "classes.interactive": f"preset readers, {file}:3",
        "classes.batch": f"{file}:2", "classes.priority": f"{file}:4",
    }  # fmt: skip
    assert ("classes.priority", "removed", f"{file}:4") in effective.rows()
    assert plugin_settings({"sloserve": json.loads(json.dumps(effective.section))}) == effective.settings
    file.write_text("classes:\n  interactive: {}\n  listener: {}\n")
    assert settle(read_sources(file, {}, "readers")).settings == settle(read_sources(None, {}, "readers")).settings


@pytest.mark.parametrize(
    ("policy", "warns"),
    [
        ("edf", None),
        ("andes", None),
        ("auto", None),
        ("sjf", "policy sjf does not read ttft_s, tpot_s of class priority"),
        ("econo-paper", "policy econo-paper does not read the rank of a class, nor any target that it gives: priority, "
         "interactive, batch have no effect on the order of service; policy auto reads both"),
        ("fcfs", "policy fcfs does not read the rank of a class, nor any target that it gives: priority, interactive, "
         "batch, background have no effect"),
    ],
)  # fmt: skip
def test_a_class_that_the_policy_does_not_read_is_warned_of(policy: str, warns: str | None, made: Made) -> None:
    text = (
        "classes:\n  priority: {rank: 0, ttft_ms: 1000, tpot_ms: 100}\n  interactive: {rank: 1, tds: 5}\n"
        "  batch: {rank: 2}\n  background: {rank: 3, e2e_ms: 60000}\n"
    )
    warnings = made(text, policy=policy).warnings()
    assert (warnings[0] if warnings else None) == warns or (warns is not None and warnings[0].startswith(warns))


def test_presets_are_listed_and_checked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["presets"], ["check-config", "--preset", "chat-and-jobs", "--policy", "rr"], ["check-config"]):
        monkeypatch.setattr(sys, "argv", ["sloserve", *command])
        with pytest.raises(SystemExit):
            cli.main()
    said = capsys.readouterr()
    assert [line.split()[0] for line in said.out.splitlines()[:4]] == sorted(presets())
    assert ["policy", "rr", "--policy"] in [line.split() for line in said.out.splitlines()]
    assert "preset chat-and-jobs" in said.out
    assert (
        "sloserve: warning: policy rr does not read the rank" in said.err
        and "name a FILE, a --preset, or flags" in said.err
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("objectives: {a: gold}", "objectives.a: 'gold' is not one of the classes priority"),
        ("priority_headers: {x-p: {1: gold}}", "priority_headers.x-p.1: 'gold' is not one of the classes priority"),
        ("priority_headers: {x-slo-class: {1: batch}}", "priority_headers: .* is not a mapping of at most 8 header"),
        ("priority_headers: {x-p: {}}", "priority_headers: .* is not a mapping of at most 8 header"),
        ("priority_headers: {x-p: {1: 2}}", "priority_headers: .* is not a mapping of at most 8 header"),
        ("priority_headers: [x-p]", "priority_headers: .* is not a mapping of at most 8 header"),
        ("unknown_headers: allow", "unknown_headers: 'allow' is not one of ignore, reject"),
        ("tenant_headers: x-a", "tenant_headers: 'x-a' is not a list of header names"),
        ("tenant_headers: [x-slo-class]", "tenant_headers: .* is not a list of header names"),
        ("tenant_headers: ['a b']", "tenant_headers: .* is not a list of header names"),
        ("tenant_headers: [1]", "tenant_headers: .* is not a list of header names"),
    ],
)
def test_what_gateways_need_is_checked(text: str, says: str, made: Made) -> None:
    with pytest.raises(ConfigError, match=says):
        made(text)


@pytest.mark.parametrize(
    ("text", "proxies", "warns"),
    [
        ("tenant_shares: {}", None, False),
        ("tenant_shares: {}", "*", True),
        ("tenants: {acme: batch}", "10.0.0.0/8", True),
        ("tenants: {acme: batch}\ntenant_headers: []", "10.0.0.0/8", False),
        ("policy: edf", "*", False),
    ],
)
def test_a_warning_says_that_others_may_name_any_tenant(
    tmp_path: Path, text: str, proxies: str | None, warns: bool
) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    said = settle(read_sources(path, {"trusted_proxies": proxies})).warnings()
    assert any("may name any tenant in a header" in line for line in said) is warns


def test_proxies_that_are_no_networks_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--trusted-proxies: '10\.0\.0\.1/8' is not a list of at most 256 addresses"):
        settle(read_sources(None, {"trusted_proxies": "10.0.0.1/8"}))
