"""The options of ``sloserve simulate`` and ``sloserve advise`` from which an experiment is built.

They are names, types, defaults and help. Imports nothing that takes long, so that ``--help`` responds at once.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sloserve.sim.workloads.tasks.task_options import TaskOptions
from sloserve.sim.workloads.traffic_options import TrafficOptions


@dataclass(frozen=True, kw_only=True)
class ExperimentOptions(TrafficOptions):
    """The options for what is simulated, whatever schedules it: offered load, engine, and what is known of it."""

    load: Annotated[
        str | None, typer.Option(help="Offered load as multiples of stock's measured capacity, e.g. 0.7,1.5.")
    ] = None
    seeds: Annotated[int, typer.Option(help="Number of seeds (for window of the trace, classes, draws).")] = 3
    window: Annotated[
        str | None,
        typer.Option(
            help="Part of the workload that seeds draw from: 0:0.5 is the earlier half of a trace's requests; for "
            "a generator, draws that 0.5:1 does not have. Default: all."
        ),
    ] = None
    max_requests: Annotated[int, typer.Option(help="Requests per run.")] = 1000
    profile: Annotated[
        str, typer.Option(help="Engine profile, shipped name or path; `sloserve profile` measures yours.")
    ] = "h100-llama3-8b"
    kv_blocks: Annotated[int | None, typer.Option(help="Number of KV blocks. Default: the profile's.")] = None
    max_num_seqs: Annotated[
        int | None, typer.Option(help="Most requests that run at once. Default: the profile's.")
    ] = None
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Most tokens per step. Default: the profile's.")
    ] = None
    max_model_len: Annotated[
        int | None, typer.Option(help="Longest prompt and reply together, in tokens. Default: the profile's.")
    ] = None
    step_noise: Annotated[
        float,
        typer.Option(
            help="Random variation of step times: 0.1 is 10 % around the profile's, and one step in a thousand "
            "takes five times as long; 0 is none."
        ),
    ] = 0.0
    num_speculative_tokens: Annotated[
        int,
        typer.Option(
            help="Draft tokens per sequence and step, as in vLLM's --speculative-config, of a draft head (EAGLE, MTP); "
            "0 is none."
        ),
    ] = 0
    draft_acceptance: Annotated[
        float | None,
        typer.Option(
            help="Mean probability that a draft token is accepted, given that those before it were. Default: 0.8, "
            "about what EAGLE's authors measured."
        ),
    ] = None
    draft_acceptance_spread: Annotated[
        float | None,
        typer.Option(
            help="Standard deviation over requests of a request's own acceptance. Default: 0.1, or less near 0 and 1."
        ),
    ] = None
    draft_round_share: Annotated[
        float | None,
        typer.Option(
            help="Time to draft one token for all sequences, as a share of the profile's smallest step. Default: "
            "0.055, the share of the weights that EAGLE's head reads for a model of 7B parameters."
        ),
    ] = None
    length_model: Annotated[
        Path | None, typer.Option(help="File of `sloserve train-length`, by which policies predict output lengths.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class SimulateOptions(TaskOptions, ExperimentOptions):
    """The options of a whole experiment: further, the scheduler, and the engine's swap space."""

    policy: Annotated[
        str,
        typer.Option(
            help="Policies, comma-separated; stock is vLLM's own scheduler. Engine flags for one policy follow "
            "after @: edf@max_num_batched_tokens=1024:max_num_seqs=128, edf@swap_space_gib=16:link_gb_per_s=3."
        ),
    ] = "stock,edf"
    admission: Annotated[
        str,
        typer.Option(
            help="Admissions, comma-separated; each is combined with every policy: none, cap:max_waiting=64, "
            "predict:min_chance=0.5, vllm:max_num_queued_tokens=16000, vllm:max_num_queued_reqs=64."
        ),
    ] = "none"
    swap_space_gib: Annotated[
        float,
        typer.Option(
            help="GiB of host memory for the KV of preempted requests, which is then not computed again; 0 is none. "
            "Stock has no swap space; fcfs is its order with swap space."
        ),
    ] = 0.0
    link_gb_per_s: Annotated[
        float | None,
        typer.Option(help="Rate of the link to the host in each direction, in 1e9 bytes/s. Default: the profile's."),
    ] = None
    swapping: Annotated[
        str,
        typer.Option(
            help="Which preempted requests are copied: cost: those whose recomputation takes more engine time; "
            "always: all."
        ),
    ] = "cost"
    tenant_shares: Annotated[
        str | None,
        typer.Option(
            help="Weights of the tenants' shares of the engine: acme=2,globex; tenants that are not named have 1. "
            "`equal`: all have 1. Default: policies do not see tenants."
        ),
    ] = None
    aged_share: Annotated[
        float | None,
        typer.Option(help="Share of admissions for aged requests, 0 for none. Default: 0.05, as on a server."),
    ] = None
    plan_share: Annotated[
        float | None,
        typer.Option(help="Most of the engine's time that planning takes, 1: at every step. Default: as on a server."),
    ] = None
    plan_cost: Annotated[
        float,
        typer.Option(help="Engine time charged for planning, as a multiple of what was measured; 0 charges nothing."),
    ] = 1.0
    known_profile: Annotated[
        str | None,
        typer.Option(
            help="Profile that policies know, as from the server's settings; --profile is what steps really take. "
            "Default: none, step times are learnt from the steps."
        ),
    ] = None
    engine: Annotated[
        str,
        typer.Option(
            help="vllm: vLLM's real scheduler. model: a model of it, many times as fast, which needs no vLLM."
        ),
    ] = "vllm"


@dataclass(frozen=True, kw_only=True)
class AdviseOptions(ExperimentOptions):
    """The options of an experiment that searches for policies; a search takes many runs, each shorter than usual."""

    seeds: Annotated[
        int, typer.Option(help="Number of seeds (for window of the trace, classes, draws), at least 3.")
    ] = 5
    max_requests: Annotated[int, typer.Option(help="Requests per run.")] = 500
    step_noise: Annotated[float, typer.Option(help="Random variation of step times, as for `sloserve simulate`.")] = 0.1


@dataclass(frozen=True, kw_only=True)
class FleetOptions:
    """The options of an experiment on a fleet: the options of ``sloserve simulate`` that go with ``--fleet``."""

    workload: str = "w-a"
    policy: str = "on-demand,collate,edf,qlm"
    rps: str | None = None
    seeds: int = 3
    max_requests: int = 1000
    engine: str = "model"
    swap_cost: float = 1.0
