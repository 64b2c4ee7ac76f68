"""Write a recording as a timed trace, as JSON lines that AIPerf and ``vllm bench serve`` read.

Source: the fields are ``timestamp`` (milliseconds), ``input_length``, ``output_length`` and ``hash_ids`` of Mooncake's
traces, which AIPerf calls ``mooncake_trace``; vLLM's ``timed_trace`` has a flag for each of their names and units.

Both make a prompt of its hashes: each stands for a block of tokens, the last one for what is left of the prompt. So a
prompt gets as many hashes as it has blocks. Recorded hashes are of whole stretches, and of the beginning of a long
prompt alone: the blocks that have none get hashes that no other prompt has.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sloserve.engine.recording.reading import Recording
from sloserve.sim.recorded_run import new_file, stretch_hashes, traced

FILE: Final = "trace.jsonl"
"""Name of the file."""


def timed_rows(recording: Recording) -> Iterator[dict[str, Any]]:
    """Yield the rows of the trace, by arrival; the first is at 0.

    Raises: ConfigError if no request has ended with an output.
    """
    stretch, ids, next_id, began_s = recording.head.stretch_tokens, dict[bytes, int](), 0, None
    for request, end in traced(recording):
        began_s = request.at_s if began_s is None else began_s
        found: list[int] = []
        for one in stretch_hashes(request.prompt):
            if one not in ids:
                ids[one], next_id = next_id, next_id + 1
            found.append(ids[one])
        missing = max(math.ceil(request.prompt_tokens / stretch) - len(found), 0)
        found.extend(range(next_id, next_id + missing))
        next_id += missing
        yield {
            "timestamp": round((request.at_s - began_s) * 1e3),
            "input_length": request.prompt_tokens,
            "output_length": end.output_tokens,
            "hash_ids": found,
        }


def write_timed_trace(recording: Recording, folder: Path) -> tuple[int, int]:
    """Write :data:`FILE`; return how many requests were written, and how many were left out.

    Raises: ConfigError if the file cannot be written, or no request has ended with an output.
    """
    rows = list(timed_rows(recording))
    with new_file(folder, FILE) as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return len(rows), len(recording.arrived) - len(rows)


def aiperf_command(path: Path, stretch_tokens: int) -> str:
    """Return a command of AIPerf that sends the trace.

    Args:
        path: Path of the file.
        stretch_tokens: Tokens that one hash stands for.
    """
    return (
        f"aiperf profile --model MODEL --url URL --endpoint-type completions --streaming --input-file {path} "
        f"--custom-dataset-type mooncake_trace --isl-block-size {stretch_tokens} --fixed-schedule"
    )


def vllm_command(path: Path, stretch_tokens: int, requests: int) -> str:
    """Return a command of vLLM that sends the trace.

    Args:
        path: Path of the file.
        stretch_tokens: Tokens that one hash stands for.
        requests: Number of requests of the trace.
    """
    return (
        f"vllm bench serve --model MODEL --base-url URL --backend vllm --dataset-name timed_trace "
        f"--dataset-path {path} --num-prompts {requests} --timed-trace-chunk-hash-size {stretch_tokens} "
        "--timed-trace-sec-multiplier 0.001"
    )
