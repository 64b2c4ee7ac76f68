"""``result.json`` of an experiment: its runs, and everything that they depend on."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sloserve.sim.experiment import VLLM, Experiment
from sloserve.sim.model import MODELLED_VLLM
from sloserve.sim.report.logs import RESULT_JSON, Verdicts, write_result
from sloserve.sim.run_name import STOCK, SWAP_OPTIONS
from sloserve.sim.tuning import Tuned
from sloserve.sim.workloads.tasks.offered import describe_tasks
from sloserve.vllm_plugin.versions import installed_vllm


def vllm_version_of(engine_kind: str) -> str:
    """Return the version of vLLM that runs in an engine of this kind, or that the engine models."""
    return str(installed_vllm()) if engine_kind == VLLM else MODELLED_VLLM


def write_experiment(
    experiment: Experiment,
    out_dir: Path,
    runs: Sequence[Mapping[str, Any]],
    verdicts: Verdicts,
    counters: Sequence[Mapping[str, int]],
    tuned: Sequence[Tuned],
) -> None:
    """Write the results of ``experiment`` to ``out_dir``.

    Args:
        experiment: The experiment that ran.
        out_dir: Folder of the files.
        runs: Records of the runs.
        verdicts: What all runs say together.
        counters: Counters of each of ``runs``.
        tuned: What tuning found before; empty without tuning.
    """
    engine, slos = experiment.engine, experiment.slos or experiment.workload.slos
    write_result(
        out_dir / RESULT_JSON,
        runs,
        vllm_version=vllm_version_of(experiment.engine_kind),
        profile=experiment.profile.name,
        workload={
            "name": experiment.workload.name,
            "description": experiment.workload.description,
            "slos": slos.source,
            "window": str(experiment.window),
            **(
                {"requests": experiment.max_requests}
                if experiment.tasks is None
                else {"tasks": describe_tasks(experiment.tasks)}
            ),
        },
        settings={
            "engine": experiment.engine_kind,
            **({"profile_marker": experiment.profile.marker} if experiment.profile.marker else {}),
            "kv_blocks": engine.kv_blocks,
            "block_size": engine.block_size,
            "max_num_seqs": engine.max_num_seqs,
            "max_num_batched_tokens": engine.max_num_batched_tokens,
            "max_model_len": engine.max_model_len,
            "enable_prefix_caching": engine.enable_prefix_caching,
            **({name: getattr(engine, name) for name in SWAP_OPTIONS} if engine.swap_space_gib else {}),
            **({"drafts": asdict(engine.drafts)} if engine.drafts is not None else {}),
            **_tenant_settings(experiment),
            "aged_share": experiment.aged_share,
            "plan_share": experiment.plan_share,
            "plan_cost": experiment.plan_cost,
            "step_noise": experiment.step_noise,
            "known_profile": experiment.known_profile,
            "baseline": STOCK,
            "tuned": {
                one.name: {"best": one.best, "tried": {name: score.as_dict() for name, score in one.tried.items()}}
                for one in tuned
            },
            "counters": [
                {"policy": run["policy"], "seed": run["seed"], "rps": run["rps"], **of_run}
                for run, of_run in zip(runs, counters, strict=True)
            ],
        },
        verdicts=verdicts,
    )


def _tenant_settings(experiment: Experiment) -> dict[str, Any]:
    """Return the settings of tenants, which an experiment without any does not have."""
    drawn, weights = experiment.workload.tenants, experiment.tenant_weights
    tenants = {} if drawn is None else {"tenants": dict(zip(drawn.names, drawn.parts, strict=True))}
    return tenants if weights is None else {**tenants, "tenant_weights": dict(weights)}
