"""Engines of the tiny models, with scarce KV, and what of a run differs from stock's."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sloserve.core.clock import ManualClock
from tests.equality.engine import EngineConfig, started
from tests.equality.harness import Served, serve
from tests.equality.layouts.models import MODELS, ModelFolders
from tests.equality.subjects import SUBJECTS
from tests.equality.test_real_engine import Bench
from tests.equality.workloads import WORKLOADS
from tests.other_vllm import needs_float32_mamba

SUBJECT = {subject.name: subject for subject in SUBJECTS}

ENOUGH_BLOCKS = 300
SCARCE = (3.0, 2.5, 2.0, 1.75, 1.5, 4.0, 5.0)
"""KV blocks that there are, in multiples of what the longest request holds at most: the first with which stock preempts
more than once."""
FEWEST_BLOCKS = 3

MODES = [EngineConfig(two_deep, cache) for two_deep in (True, False) for cache in (True, False)]


@dataclass(frozen=True)
class Case:
    """A model, and the mode of its engine."""

    model: str
    config: EngineConfig = MODES[0]

    def __str__(self) -> str:
        return f"{self.model}-{self.config}"


@contextlib.contextmanager
def bench_of(
    case: Case, folders: ModelFolders, adapters: Path, workload: str = "short", **engine_args: Any
) -> Iterator[Bench]:
    """An engine of ``case`` whose KV cache holds a few requests of ``workload``."""
    from vllm.model_executor.models import registry

    if "block_size" in MODELS[case.model].engine:
        needs_float32_mamba()
    arguments = {
        "model": folders.of(case.model),
        "num_gpu_blocks_override": ENOUGH_BLOCKS,
        "max_num_batched_tokens": 64,
        "use_tqdm_on_load": False,
        **MODELS[case.model].engine,
        **engine_args,
    }
    with pytest.MonkeyPatch.context() as patch:
        # To look at a model's class vLLM starts a process that imports all of vLLM, once for each class.
        patch.setattr(registry, "_run_in_subprocess", lambda look: look())
        with started(case.config, **arguments) as engine:
            bench = Bench(engine, adapters)
            _make_scarce(bench, workload)
            yield bench


def _make_scarce(bench: Bench, workload: str) -> None:
    most = _most_blocks_of_one(bench, workload)
    for blocks in dict.fromkeys(max(int(scarce * most), FEWEST_BLOCKS) for scarce in SCARCE):
        bench.engine.limit_blocks(1 + blocks)
        bench.forget_stock()
        if bench.stock(workload).preemptions > 1:
            return


def _most_blocks_of_one(bench: Bench, workload: str) -> int:
    """KV blocks that the request with most tokens holds at most, alone."""
    from sloserve.vllm_plugin.engine import compat

    engine = bench.engine
    longest = max(WORKLOADS[workload](), key=lambda job: len(job.prompt) + job.params["max_tokens"])
    engine.use_stock()
    scheduler, held = engine.scheduler, [0]
    schedule = scheduler.schedule

    def watching(*args: Any) -> Any:
        output = schedule(*args)
        held.append(compat.total_blocks(scheduler) - 1 - compat.free_blocks(scheduler))
        return output

    scheduler.schedule = watching
    alone = replace(longest, params={**longest.params, "n": 1, "ignore_eos": True, "temperature": 0.0})
    serve(engine, [alone], ManualClock(), bench._adapters)
    return max(held)


def differences(served: Served, stock: Served) -> list[str]:
    """Each reply that is not stock's: at which token it differs first, and by how much stock's had led there."""
    found = []
    for name, samples in served.outputs.items():
        for number, (ours, its) in enumerate(zip(samples, stock.outputs.get(name, samples), strict=True)):
            if ours != its:
                same = [a == b for a, b in zip(ours, its, strict=False)]
                at = same.index(False) if False in same else len(same)
                margins = stock.margins.get(name, []) if number == 0 else []
                led = f"{margins[at]:.1e}" if at < len(margins) else "?"
                found.append(f"{name}[{number}] at token {at} of {len(its)}, which led by {led}")
    return found
