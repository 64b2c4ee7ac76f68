"""``sloserve serve``: mistakes are answered before a model is loaded."""

import argparse
import gc
import importlib
import os
import re
import socket
import sys
import tempfile
from pathlib import Path
from typing import NoReturn
from unittest.mock import Mock

import pytest
import typer

import sloserve
from sloserve import cli
from sloserve.core.addresses import is_exposed
from sloserve.core.errors import ConfigError
from sloserve.core.listening import check_port_free
from sloserve.scheduler.registry import policy_names
from sloserve.scheduler.settings import ADMIN_KEY, PluginSettings
from sloserve.vllm_plugin.server import serve
from sloserve.vllm_plugin.server import vllm_arguments as passed
from sloserve.vllm_plugin.server.early import known_flags, read_flags
from sloserve.wire.keys import hash_of
from tests.ports import free_port


def run_main(monkeypatch: pytest.MonkeyPatch, *argv: str) -> int:
    monkeypatch.setattr(sys, "argv", ["sloserve", *argv])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    return int(exit_.value.code or 0)


def test_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"sloserve {sloserve.__version__}\n"


def test_the_front_end_that_reads_no_slos_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")
    with pytest.raises(ConfigError, match="VLLM_USE_RUST_FRONTEND is set, and vLLM's Rust front end reads no SLOs"):
        serve.prepare(["builtin:tiny"])


@pytest.mark.parametrize("named", ["", "/" + "d" * 71])
def test_sockets_of_vllm_fit_beside_a_long_temporary_folder(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else vLLM ends in a traceback: a path of a socket has at most 107 bytes."""
    monkeypatch.setenv(serve.SOCKETS, named)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/" + "d" * 71)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    monkeypatch.setattr(serve, "require_vllm", lambda: None)
    monkeypatch.setattr(serve, "parse_vllm_args", _stopped)
    monkeypatch.setitem(sys.modules, "sloserve.vllm_plugin.engine.private_names", Mock())
    message = "VLLM_RPC_BASE_PATH /d+: its 72 bytes are too many" if named else "as far as flags"
    with pytest.raises(ConfigError, match=message):
        serve.prepare(["a-model"])
    assert named or os.environ[serve.SOCKETS] == "/tmp"


def _stopped(*_: object) -> NoReturn:
    raise ConfigError("as far as flags")


@pytest.mark.slow
def test_policies_are_listed_with_what_they_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "policies") == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("For experiments, to reproduce papers:")
    for listed, apart in ((lines[: at - 1], False), (lines[at + 2 :], True)):
        assert tuple(line.split()[0] for line in listed) == policy_names(for_experiments=apart)
    assert all(len(line.split()) > 3 and "cannot be loaded" not in line for line in lines if line)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("edff", r"unknown policy 'edff'; installed: .*; did you mean 'edf'\?"),
        ("edf:speed=3", "policy 'edf' has no option 'speed'"),
        ("edf:preempt", r"'preempt' is not of the form option=value"),
    ],
)
def test_wrong_policy_is_refused_before_vllm_is_imported(
    policy: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    assert run_main(monkeypatch, "serve", "builtin:tiny", "--policy", policy) == 2
    assert re.fullmatch(f"sloserve: .*{message}.*\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--polcy", "no such flag: --polcy; did you mean --policy?"),
        ("--shadow_policy=sjf", "no such flag: --shadow_policy; did you mean --shadow-policy?"),
        ("--max-waitng", "no such flag: --max-waitng; did you mean --max-waiting?"),
    ],
)
def test_a_flag_nearly_ours_is_refused_before_vllm_is_imported(
    flag: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    assert run_main(monkeypatch, "serve", "builtin:tiny", flag, "edf") == 2
    assert capsys.readouterr().err == f"sloserve: {message}\n"


@pytest.mark.slow
def test_no_flag_of_vllm_is_taken_for_one_of_ours() -> None:
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = ServeSubcommand().subparser_init(FlexibleArgumentParser().add_subparsers())
    listed = set(known_flags())
    theirs = [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
    assert set(theirs) <= listed
    for command in ("serve", "profile"):
        context = typer.Context(typer.main.get_command(cli.app).commands[command])  # type: ignore[attr-defined]
        ours = passed.our_flags(context)
        assert len(theirs) > 100 and len(ours) > 5
        assert passed.vllm_arguments(context, theirs) == theirs  # --load-format is nearly our --log-format


def test_a_taken_port_is_refused_before_vllm_is_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run_main(monkeypatch, "serve", "builtin:tiny", f"--port={port}") == 2
    assert capsys.readouterr().err == (
        f"sloserve: cannot listen on 127.0.0.1 port {port}: Address already in use; "
        "choose another with --port or --host\n"
    )


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (["m", "-tp", "2"], ("127.0.0.1", 8000)),
        (["m", "--host", "::1", "--port=9", "--port", "10"], ("::1", 10)),
        (["m", "--uds", "/tmp/s"], None),
        (["m", "--headless"], None),
        (["--config", "server.yaml"], None),
    ],
)
def test_where_it_will_listen_is_read_without_vllm(flags: list[str], found: tuple[str, int] | None) -> None:
    assert serve.listens_on(read_flags(flags)) == found


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        ("serve m --port 0", ""),
        pytest.param(
            "simulate --workload voice --rps 1 --max-requests 1 --seeds 1 --out out",
            "give --engine model, which needs none, or ",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_without_vllm_there_is_one_line_with_the_remedy(
    command: str, instead: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sloserve.vllm_plugin.versions.find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)
    assert run_main(monkeypatch, *command.split()) == 2
    remedy = f"vLLM is not installed; {instead}install sloserve[gpu], or sloserve[cpu] where there is no GPU"
    assert capsys.readouterr().err == f"sloserve: {remedy}\n"


def test_a_policy_is_shown_with_its_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "policies", "edf") == 0
    out = capsys.readouterr().out
    assert out.startswith("edf: Serves the request with the nearest deadline; ")
    assert re.search(r"\n  max_preemptions +3 +int +most preemptions of one request\n", out)
    assert run_main(monkeypatch, "policies", "fcfs") == 0
    assert re.search(r"\n  step_budget +false +bool +limit the prompt tokens of each step", capsys.readouterr().out)
    assert run_main(monkeypatch, "policies", "edff") == 2
    assert "did you mean 'edf'?" in capsys.readouterr().err


Served = tuple[list[str], dict[str, object], str | None]
"""Arguments that vLLM's parser got, settings and admin key that the server got."""


def namespace(**flags: object) -> argparse.Namespace:
    stock = {
        "enable_chunked_prefill": None,
        "scheduler_cls": None,
        "scheduling_policy": "fcfs",
        "additional_config": {},
        "middleware": [],
    }
    return argparse.Namespace(**{**stock, **flags})


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Served]:
    """What ``sloserve serve`` hands on, instead of starting anything."""
    calls: list[Served] = []
    monkeypatch.delenv(ADMIN_KEY, raising=False)
    monkeypatch.setattr(serve, "prepare", lambda vllm_args, our_flags: namespace(vllm_args=list(vllm_args)))
    monkeypatch.setattr(
        serve, "run", lambda args, section, admin_key, source: calls.append((args.vllm_args, dict(section), admin_key))
    )
    return calls


@pytest.mark.parametrize(
    "flags",
    [
        ["m", "--port", "8001", "-tp", "2", "-O3"],
        ["--port", "8001", "--no-enable-prefix-caching", "m"],
        ["--config", "server.yaml"],
        ["m", "--served-model-name", "a", "b", "--hf-overrides", '{"a": 1}', "--json-arg.key", "-1"],
    ],
)
@pytest.mark.parametrize("policy_at", [0, 1, -1])
def test_vllm_flags_are_passed_on_in_order(
    flags: list[str], policy_at: int, monkeypatch: pytest.MonkeyPatch, served: list[Served]
) -> None:
    at = {0: 0, 1: 1 if not flags[0].startswith("-") else 0, -1: len(flags)}[policy_at]
    assert run_main(monkeypatch, "serve", *flags[:at], "--policy", "edf", *flags[at:]) == 0
    assert served == [(flags, {"policy": "edf"}, None)]


def test_settings_and_their_origins_are_printed_once_and_handed_on(
    monkeypatch: pytest.MonkeyPatch, served: list[Served], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("policy: sjf\nadmission:\n  mode: cap\n  max_waiting: 5\n")
    flags = ["--slo-config", str(file), "--policy", "edf", "--shadow-policy", "sjf", "--max-waiting", "7"]
    assert run_main(monkeypatch, "serve", "m", *flags, "--admin-key", "hunter2") == 0
    section = {"policy": "edf", "shadow_policy": "sjf", "admission": {"mode": "cap", "max_waiting": 7}}
    assert served == [(["m"], section, "hunter2")]
    out = capsys.readouterr().out
    assert "hunter2" not in out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    assert rows["policy"] == ["edf", "--policy"] and rows["seed"] == ["0", "default"]
    assert rows["admission.mode"] == ["cap", f"{file}:3"] and rows["admission.max_waiting"] == ["7", "--max-waiting"]
    assert rows["admin"] == ["routes", "on", "--admin-key"]


def test_admin_key_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, served: list[Served], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "serve", "m") == 0
    monkeypatch.setenv(ADMIN_KEY, "from-env")
    assert run_main(monkeypatch, "serve", "m") == 0
    assert run_main(monkeypatch, "serve", "m", "--admin-key", "from-flag") == 0
    assert [key for _, _, key in served] == [None, "from-env", "from-flag"]
    out = capsys.readouterr().out
    assert re.search(r"admin routes +off +default\n", out) and re.search(rf"admin routes +on +{ADMIN_KEY}\n", out)
    assert "from-" not in out
    for key in ("", "two words", "key\n", "schl\u00fcssel"):
        assert run_main(monkeypatch, "serve", "m", "--admin-key", key) == 2
    assert all(key not in capsys.readouterr().err for key in ("two words", "schl\u00fcssel"))


def test_configure_keeps_what_else_the_user_configured() -> None:
    args = namespace(additional_config={"other": 1, "sloserve": {"seed": 7}}, middleware=["a.B"])
    serve.configure(args, {"seed": 7, "policy": "sjf"})
    assert args.scheduler_cls == serve.SCHEDULER_CLS
    assert args.additional_config == {"other": 1, "sloserve": {"seed": 7, "policy": "sjf"}}
    assert args.middleware == ["a.B", serve.MIDDLEWARE]
    serve.configure(args, {})
    assert args.middleware == ["a.B", serve.MIDDLEWARE]


def test_the_middleware_exists() -> None:
    module, name = serve.MIDDLEWARE.rsplit(".", 1)
    assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"scheduler_cls": "a.B"}, "--scheduler-cls a.B: sloserve serve sets the scheduler"),
        ({"scheduling_policy": "priority"}, "use --policy priority"),
    ],
)
def test_flags_of_another_scheduler_are_refused(flags: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        serve.check_scheduler_flags(namespace(**flags))


@pytest.mark.parametrize(
    ("host", "exposed"),
    [
        ("127.0.0.1", False), ("127.8.8.8", False), ("::1", False), ("localhost", False), ("0.0.0.0", True),
        ("::", True), ("10.0.0.5", True), ("server.example", True), ("", True), (None, True),
    ],
)  # fmt: skip
def test_hosts_that_other_machines_reach(host: str | None, exposed: bool) -> None:
    assert is_exposed(host) == exposed


def test_the_warning_says_what_a_key_does_not_guard() -> None:
    assert "/invocations" in serve.exposure("0.0.0.0", 8000, has_key=True)
    assert "--api-key or VLLM_API_KEY asks for a key" in serve.exposure("0.0.0.0", 8000, has_key=False)


@pytest.mark.slow
def test_a_file_of_keys_and_a_key_of_vllm_exclude_each_other(
    monkeypatch: pytest.MonkeyPatch, served: list[Served], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(f"tenants: {{a: {{keys: ['{hash_of('k')}']}}}}")
    assert run_main(monkeypatch, "serve", "m", "--keys", str(file)) == 0
    assert served[-1][1]["keys"] == str(file)
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    assert run_main(monkeypatch, "serve", "m", "--keys", str(file)) == 2
    said = capsys.readouterr().err
    assert "beside VLLM_API_KEY: a request can show one key only; put the hash of that key into the file" in said
    assert "secret" not in said
    monkeypatch.delenv("VLLM_API_KEY")
    settings = PluginSettings(keys=str(file))
    with pytest.raises(ConfigError, match="beside --api-key: a request can show one key only"):
        serve.check_keys(namespace(api_key=["secret"]), settings)
    serve.check_keys(namespace(api_key=["secret"]), PluginSettings())
    file.write_text("tenants: {a: {keys: [k]}}")
    assert run_main(monkeypatch, "serve", "m", "--keys", str(file)) == 2
    assert "keys.yaml:1:22: tenants.a.keys.0: is not sha256:" in capsys.readouterr().err


def test_port_in_use_is_one_message() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1 port {port}: Address already in use"):
            check_port_free("127.0.0.1", port)
    check_port_free("127.0.0.1", port)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no model given; name one, a folder, or builtin:tiny"),
        (["/no/such/folder"], "model /no/such/folder: there is no such folder or file"),
        (["./none", "--port", "1"], "model ./none: there is no such"),
        (["builtin:tiny", "--port", "1"], None),
        (["org/model"], None),
        (["/"], None),
        (["--model", "/no/such"], None),  # vLLM's own error says how it is given
    ],
)
def test_a_model_that_cannot_be_is_said_before_vllm_is_loaded(arguments: list[str], message: str | None) -> None:
    if message is None:
        serve.check_model(arguments)
        return
    with pytest.raises(ConfigError, match=re.escape(message)):
        serve.check_model(arguments)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["m", "--prot", "1"], "no such flag: --prot; did you mean --port?"),
        (["m", "--max_model_lne=512"], "no such flag: --max-model-lne; did you mean --max-model-len?"),
        (["m", "--shadow-polic", "edf"], "no such flag: --shadow-polic; did you mean --shadow-policy?"),
        (["m", "--max-model-l", "9", "--max_model_len=9", "--hf-overrides.a", "1", "-O3", "--of-a-plugin"], None),
        (["m", "--no-enable-prefix-caching", "--", "--prot"], None),
    ],
)
def test_a_mistyped_flag_of_vllm_is_found_without_vllm(
    arguments: list[str], meant: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if meant is None:
        serve.check_flags(arguments, ["--shadow-policy"])
        return
    with pytest.raises(ConfigError, match=f"^{re.escape(meant)}$"):
        serve.check_flags(arguments, ["--shadow-policy"])
    monkeypatch.setattr(serve, "installed_vllm", lambda: "99.0")  # whose flags nobody has listed
    serve.check_flags(arguments, [])


def test_a_port_that_is_no_number_is_one_message() -> None:
    with pytest.raises(ConfigError, match="argument --port: invalid int value: 'x'"):
        read_flags(["m", "--port", "x"])


def test_a_port_out_of_range_is_one_message() -> None:
    with pytest.raises(ConfigError, match=r"port 99999: .*0-65535; choose another"):
        check_port_free("127.0.0.1", 99_999)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["builtin:tiny", "--prot", "1"], "unrecognized arguments: --prot 1; did you mean --port?"),
        (["builtin:tiny", "--port", "x"], "argument --port: invalid int value: 'x'"),
        (["builtin:tiny", "--dtype", "int3"], "argument --dtype: invalid choice"),
        (["--port", "8000"], "no model given; name one, a folder, or builtin:tiny"),
        (["--config", "/nowhere.yaml"], "/nowhere.yaml"),
    ],
)
def test_wrong_vllm_flag_is_one_message(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        serve.parse_vllm_args(flags)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_flag_that_vllm_does_not_know_may_have_been_one_of_ours() -> None:
    with pytest.raises(ConfigError, match=r"unrecognized arguments: --shadow edf; did you mean --shadow-policy\?$"):
        serve.prepare(["builtin:tiny", "--shadow", "edf"], ["--policy", "--shadow-policy"])


@pytest.mark.slow
def test_tiny_model_sets_defaults_that_flags_override() -> None:
    args = serve.parse_vllm_args(["builtin:tiny", "--max-model-len", "512"])
    assert (Path(args.model_tag) / "config.json").exists()
    assert (args.host, args.max_model_len, args.dtype) == ("127.0.0.1", 512, "float32")
    assert args.served_model_name == ["builtin:tiny"] and args.enforce_eager
    other = serve.parse_vllm_args(["some/model", "--host", "0.0.0.0"])
    assert (other.model_tag, other.host, other.max_model_len, other.enforce_eager) == (
        "some/model", "0.0.0.0", None, False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "warned"),
    [
        (["--host", "0.0.0.0"], ["--api-key"]),
        (["--host", "0.0.0.0", "--api-key", "k"], ["/invocations"]),
        ([], []),
    ],
)
def test_vllm_gets_everything_and_an_open_door_is_pointed_out(
    flags: list[str],
    warned: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    from vllm.entrypoints.cli.serve import ServeSubcommand

    started: list[argparse.Namespace] = []
    monkeypatch.setattr(ServeSubcommand, "cmd", staticmethod(started.append))
    monkeypatch.setenv(ADMIN_KEY, "old")
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    args = serve.prepare(["builtin:tiny", "--port", str(free_port()), "--additional-config", '{"other": 1}', *flags])
    serve.run(args, {"policy": "edf"}, "secret")
    from vllm.plugins import load_endpoint_plugins

    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    assert load_endpoint_plugins(None) == [] and "endpoint plugin" not in caplog.text
    (passed,) = started
    assert (passed.scheduler_cls, passed.middleware) == (serve.SCHEDULER_CLS, [serve.MIDDLEWARE])
    assert passed.additional_config == {"other": 1, "sloserve": {"policy": "edf"}}
    assert os.environ[ADMIN_KEY] == "secret" and "secret" not in repr(vars(passed))
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("sloserve: warning: ")]
    assert len(warnings) == len(warned) and all(word in line for word, line in zip(warned, warnings, strict=True))


@pytest.mark.slow
@pytest.mark.vllm
def test_what_vllm_froze_is_collected_at_the_end_so_that_no_library_complains(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.entrypoints.cli.serve import ServeSubcommand

    at_exit: list[object] = []
    monkeypatch.setattr(ServeSubcommand, "cmd", staticmethod(lambda args: None))
    monkeypatch.setattr(serve.atexit, "register", at_exit.append)
    serve.run(serve.prepare(["builtin:tiny", "--port", str(free_port())]), {"policy": "edf"})
    assert at_exit == [gc.unfreeze]
