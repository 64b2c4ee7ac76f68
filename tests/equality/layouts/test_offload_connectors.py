"""Plans beside vLLM's own connectors that keep KV for later, and beside two connectors at once: replies equal stock's.

What is stored and loaded is decided by vLLM's own code for each connector; only the copies are made by the tests.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.equality.engine import ENGINE_WARNINGS
from tests.equality.harness import Served
from tests.equality.layouts.bench import MODES, SUBJECT, Case, bench_of, differences
from tests.equality.layouts.models import ModelFolders
from tests.equality.subjects import Subject
from tests.equality.test_real_engine import Bench
from tests.other_vllm import IS_0_30, IS_0_31
from tests.whole import WHOLE, sampled

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.skipif(IS_0_30 or IS_0_31, reason="the connectors of 0.32 and later have other hooks than before"),
    *(pytest.mark.filterwarnings(w) for w in ENGINE_WARNINGS),
]

HERE = "tests.equality.layouts"


def _settings(name: str, module: str = "host_connectors", role: str = "kv_both", **extra: Any) -> dict[str, Any]:
    return {
        "kv_connector": name,
        "kv_connector_module_path": f"{HERE}.{module}",
        "kv_role": role,
        "kv_connector_extra_config": extra,
    }


def _folder(folder: Path) -> dict[str, Any]:
    return _settings("FolderConnector", "folder_connector", folder=str(folder), load_steps=3, read_steps=3)


SETTINGS = {
    "offload": lambda folder: _settings("HostOffloadConnector", cpu_bytes_to_use=1 << 26),
    "offload-lazy": lambda folder: _settings("HostOffloadConnector", cpu_bytes_to_use=1 << 26, lazy_offload=True),
    "store": lambda folder: _settings("HostStoreConnector", lookup_async=True),
    "store-decodes": lambda folder: _settings("HostStoreConnector", save_decode_cache=True),
    "two-folders": lambda folder: _multi(_folder(folder / "one"), _folder(folder / "other")),
    "offload-and-store": lambda folder: _multi(SETTINGS["offload"](folder), SETTINGS["store"](folder)),
}
"""Of each case the settings of its KV connector, beside a folder that it may use."""


def _multi(*children: dict[str, Any]) -> dict[str, Any]:
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": list(children)},
    }


NAMES = ("fcfs", "edf", "auto", "chaos-preempt", "chaos-all", "chaos-nearly-all") if WHOLE else ("edf", "chaos-all")
CONFIGS = [MODES[0], MODES[2]] if WHOLE else [MODES[0]]
KEPT = [("offload-and-store", MODES[0])]
"""Both of vLLM's connectors, one beside the other."""


@dataclass
class Beside:
    """An engine beside a connector. stock: what stock serves without one."""

    bench: Bench
    stock: Served
    folder: Path

    def start_anew(self) -> None:
        from tests.equality.layouts import folder_connector, host_connectors

        host_connectors.SEEN.clear()
        host_connectors.STORE.clear()
        folder_connector.SEEN.clear()
        for file in self.folder.rglob("*.safetensors"):
            file.unlink()


@pytest.fixture(
    scope="module",
    params=sampled([(name, config) for config in CONFIGS for name in SETTINGS], KEPT),
    ids=lambda p: f"{p[0]}-{p[1]}",
)
def beside(
    request: pytest.FixtureRequest, folders: ModelFolders, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Beside]:
    from vllm.config import KVTransferConfig

    name, config = request.param
    case, none, folder = Case("llama", config), tmp_path_factory.mktemp("none"), tmp_path_factory.mktemp("kv")
    for part in ("one", "other"):
        (folder / part).mkdir()
    with bench_of(case, folders, none, "greedy") as plain:
        stock = plain.stock("greedy")
    settings = KVTransferConfig(**SETTINGS[name](folder))
    with bench_of(case, folders, none, "greedy", kv_transfer_config=settings) as bench:
        yield Beside(bench, stock, folder)


@pytest.mark.parametrize("subject", [SUBJECT[name] for name in NAMES], ids=str)
def test_outputs(beside: Beside, subject: Subject) -> None:
    from tests.equality.layouts import folder_connector, host_connectors

    beside.start_anew()
    served = beside.bench.serve(subject, "greedy")
    assert differences(served, beside.stock) == []
    counters = beside.bench.engine.scheduler.slo_counters
    assert counters["internal_errors"] == 0
    assert counters["plans"] > 0 or subject.name == "fcfs"
    assert counters["paused_steps"] > 0 or subject.name not in ("chaos-all", "chaos-nearly-all")
    assert served.preemptions > 0 or not subject.name.startswith("chaos")
    seen = host_connectors.SEEN + folder_connector.SEEN
    assert seen["stores"] > 0, seen
    # The two to four requests that vLLM itself preempts find their few blocks in the prefix cache again.
    assert seen["loads"] > 0 or not subject.name.startswith("chaos"), seen
