"""What does it take to put one model in another's place, by rung, and to start an engine, plainly and forked?

Writes benchmarks/results/fleet_rungs.json.gz. Real engines under a real agent, with a Llama of random weights on the
CPU and the worker whose sleep frees memory. Seconds are of the wall, from the last token of the model that leaves to a
checked token of the one that comes; CPU seconds are of all processes of the engine until then, those that have ended
included. Host bytes are what the engine's processes hold by themselves (PSS) once it sleeps.
"""

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, write_result
from sloserve.fleet.agent.agent import Agent, AgentSettings
from sloserve.fleet.agent.engine_spec import EngineModel
from sloserve.fleet.agent.instance import Instance
from sloserve.fleet.launcher.forking import ForkingLauncher
from sloserve.fleet.launcher.own import OwnProcesses
from sloserve.fleet.launcher.plain import PlainLauncher
from sloserve.vllm_plugin.server.tiny_model import tiny_model_path

FLAGS = ("--dtype", "float32", "--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "8")
FLAGS += ("--worker-cls", "sloserve.vllm_plugin.sleeping_worker.SleepingCPUWorker", "--max-lora-rank", "8")
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
ENVIRONMENT |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
RANK = 4


def write_model(folder: Path, seed: int, hidden: int, layers: int) -> None:
    """A Llama over bytes, with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shutil.copytree(tiny_model_path(), folder)
    (folder / "model.safetensors").unlink()
    tiny = LlamaConfig.from_pretrained(folder)
    tiny.update({"hidden_size": hidden, "intermediate_size": 4 * hidden, "num_hidden_layers": layers})
    tiny.update({"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": hidden // 8})
    torch.manual_seed(seed)
    LlamaForCausalLM(tiny).save_pretrained(folder)


def write_adapter(folder: Path, hidden: int, layers: int) -> None:
    import torch
    from safetensors.torch import save_file

    weights = {}
    for layer in range(layers):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_A.weight"] = torch.randn(RANK, hidden) * 0.2
        weights[f"{name}.lora_B.weight"] = torch.randn(hidden, RANK) * 0.2
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 8, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")


def stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()


def group(leader: int) -> list[int]:
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    found = []
    for pid in pids:
        try:
            found += [pid] if int(stat(pid)[2]) == leader else []
        except OSError:
            continue
    return found


def cpu_s(pids: list[int]) -> float:
    return sum(sum(map(int, stat(pid)[11:15])) for pid in pids) / TICKS_PER_S


def held_bytes(pids: list[int]) -> int:
    lines = [
        line for pid in pids for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    ]
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


class SwitchBench:
    def __init__(self, instance: Instance, sizes: dict[str, int]) -> None:
        self._instance, self._sizes = instance, sizes
        self.rows: list[dict[str, Any]] = []

    async def swap(self, model: str, rung: str) -> None:
        """Has the model come, by this rung."""
        engines = self._instance._engines
        leaving = engines.active
        begun_s = time.perf_counter()
        if not await self._instance.switch(model):
            sys.exit(f"{model} did not come; see the logs of its engine")
        seconds = time.perf_counter() - begun_s
        active = engines.active
        assert active is not None
        row = {"rung": rung, "seconds": round(seconds, 2), "weights_bytes": self._sizes[model]}
        pids = group(active.process.pid)
        if rung in ("forked", "cold"):
            row |= {"cpu_s": round(cpu_s(pids), 1), "awake_bytes": held_bytes(pids)}
        if leaving is not None and leaving is not active:
            row |= {"leaving_slept_at": leaving.level, "leaving_holds_bytes": held_bytes(group(leaving.process.pid))}
        print(row, file=sys.stderr, flush=True)
        self.rows.append(row)


async def measure(folder: Path, hidden: int, layers: int) -> dict[str, Any]:
    names = ("one", "alike", "other")
    for seed, name in enumerate(names):
        write_model(folder / name, seed, hidden, layers)
    write_adapter(folder / "adapter", hidden, layers)
    size = (folder / "one" / "model.safetensors").stat().st_size
    models = {name: EngineModel(name, str(folder / name), FLAGS, ENVIRONMENT, size) for name in names}
    models["other"] = EngineModel("other", models["other"].model, (*FLAGS, "--seed", "1"), ENVIRONMENT, size)
    tuned = EngineModel("tuned", str(folder / "adapter"), adapter_of="other")
    adapter_size = (folder / "adapter" / "adapter_model.safetensors").stat().st_size
    sizes = {**dict.fromkeys(names, size), "tuned": adapter_size}
    launcher = ForkingLauncher(folder / "launcher.log")
    begun_s = time.perf_counter()
    launcher.begin()
    while launcher.pid is None:
        await asyncio.sleep(0.1)
    imported = {"seconds": round(time.perf_counter() - begun_s, 2), "cpu_s": round(cpu_s([launcher.pid]), 1)}
    print(imported, file=sys.stderr, flush=True)
    settings = AgentSettings(
        "here", "cpu", {"here/0": {**models, "tuned": tuned}}, folder / "state", host_memory_bytes=8 << 30
    )
    async with Agent(settings, OwnProcesses(launcher)) as agent:
        bench = SwitchBench(agent.instances["here/0"], sizes)
        await bench.swap("one", "forked")
        await bench.swap("alike", "in-place")
        await bench.swap("one", "in-place")
        await bench.swap("other", "forked")
        await bench.swap("tuned", "adapter")
        await bench.swap("one", "wake")
        await bench.swap("other", "wake")
        await agent.instances["here/0"].keep_warm(())  # "one" ends
        await bench.swap("one", "forked")  # "other" sleeps without weights
        await bench.swap("other", "reload")
    cold = AgentSettings("here", "cpu", {"here/0": {"one": models["one"]}}, folder / "state")
    async with Agent(cold, OwnProcesses(PlainLauncher())) as agent:
        cold_bench = SwitchBench(agent.instances["here/0"], sizes)
        await cold_bench.swap("one", "cold")
    return {"weights_bytes": size, "launcher_import": imported, "swaps": [*bench.rows, *cold_bench.rows]}


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--out", type=Path, default=RESULTS / "fleet_rungs.json.gz")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(Path(folder), args.hidden, args.layers))
    load = round(os.getloadavg()[0], 1)
    write_result(args.out, {"load_average": load, **found})


if __name__ == "__main__":
    main()
