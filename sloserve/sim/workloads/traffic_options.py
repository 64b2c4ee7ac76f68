"""The options that say which requests are offered, at what rate and with which SLOs.

They are the same for a simulation and for a live endpoint. Imports nothing that takes long, so that ``--help`` responds
at once.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer


@dataclass(frozen=True, kw_only=True)
class TrafficOptions:
    """The options of the offered requests: one of workload and trace, and at most one field that sets the load."""

    workload: Annotated[str | None, typer.Option(help="A named workload; `sloserve workloads` lists them.")] = None
    trace: Annotated[
        Path | None,
        typer.Option(
            help="A trace to replay: CSV, Azure's CSV, Mooncake's JSONL (Dynamo's and AIPerf's too), Qwen-Bailian's "
            "JSONL or BurstGPT's CSV; or, with --rps, lengths: ShareGPT's JSON or JSONL, or JSONL with prompt and "
            "output_tokens. Optionally gzipped; a path, or the name of a file in the folder SLOSERVE_DATA."
        ),
    ] = None
    trace_format: Annotated[
        str | None,
        typer.Option(
            help="Format of --trace: csv, azure, mooncake (timestamps in milliseconds), bailian (in seconds), "
            "burstgpt, sharegpt or custom. Default: told by the file's content."
        ),
    ] = None
    trace_block_tokens: Annotated[
        int | None,
        typer.Option(
            help="Prompt tokens that one of the hash_ids in --trace stands for. Default: 512 (bailian: 16), or what "
            "the lengths of the file's prompts show."
        ),
    ] = None
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="A tokenizer.json, or the folder that has it, to count the tokens of texts in --trace. Default: "
            "four bytes a token."
        ),
    ] = None
    slo: Annotated[
        str | None,
        typer.Option(
            help="SLO file (classes, their targets, which requests are in which class), or one of default, "
            "reading, voice, scaled:prompt_ms=50:token_ms=24 (e2e target in proportion to the reply)."
        ),
    ] = None
    rps: Annotated[str | None, typer.Option(help="Offered requests per second, comma-separated.")] = None
    rate_scale: Annotated[float | None, typer.Option(help="Offered load as a multiple of the workload's rate.")] = None
    tenants: Annotated[
        str | None,
        typer.Option(
            help="Tenants that send the requests, drawn at random: with acme=3,globex three of four are acme's. "
            "Default: the tenants of --trace, if it has any."
        ),
    ] = None
