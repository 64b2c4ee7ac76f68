"""Options of an experiment on recorded traffic, in place of a workload or a trace."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from sloserve.core.errors import ConfigError
from sloserve.engine.recording.reading import Recording
from sloserve.estimator.step_time.profile import Profile, load_profile
from sloserve.sim.build_experiment import build_experiment
from sloserve.sim.experiment import Experiment
from sloserve.sim.experiment_options import ExperimentOptions, SimulateOptions
from sloserve.sim.recorded_run import write_trace

Options = TypeVar("Options", bound=ExperimentOptions)

_EXCLUDED = ("workload", "trace", "trace_format", "trace_block_tokens", "tokenizer", "slo", "tenants")
"""Options that a recording takes the place of."""


def check_no_other_traffic(options: ExperimentOptions) -> None:
    """Check that the options name no other traffic. Raises: ConfigError for the first that does."""
    for name in _EXCLUDED:
        if (value := getattr(options, name)) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} {value}: is given beside --recording, which has its own; leave one of them out")


def with_engine_of(options: Options, recording: Recording, profile: Profile) -> Options:
    """Return the options with the recorded engine's sizes where they name none.

    Args:
        options: Options of the experiment.
        recording: The recording.
        profile: Profile of the experiment, by which the size of a KV block is known.
    """
    facts = recording.head.engine
    sizes: dict[str, Any] = {name: facts[name] for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len")}
    if profile.kv_cache is None:  # blocks of several kinds of layers have sizes of their own
        sizes["kv_blocks"] = facts["kv_blocks"] * facts["block_size"] // profile.block_size
    return replace(options, **{name: size for name, size in sizes.items() if getattr(options, name) is None})


def experiment_of(recording: Recording, name: str, options: SimulateOptions) -> Experiment:
    """Return an experiment on recorded traffic, on an engine of the recorded sizes.

    Args:
        recording: The recording.
        name: Name of the recording.
        options: Other options; engine sizes that they give replace the recorded ones.

    Raises: ConfigError for options that contradict the recording or one another, and for a recording without a request
    that ended with an output.
    """
    check_no_other_traffic(options)
    options = with_engine_of(options, recording, load_profile(options.profile))
    with tempfile.TemporaryDirectory(prefix="sloserve-") as folder:
        write_trace(recording, Path(folder))
        traffic = {"trace": Path(folder) / "trace.csv", "slo": str(Path(folder) / "slo.yaml")}
        experiment = build_experiment(
            replace(options, **traffic, trace_block_tokens=recording.head.stretch_tokens)  # type: ignore[arg-type]
        )
    trace = experiment.workload.trace
    length = "" if trace is None else f", {len(trace)} requests"
    described = replace(experiment.workload, name=f"recording {name}", description=f"recording {name}{length}")
    return replace(experiment, workload=described)
