"""The experiment that the options of the command line describe."""

from typing import Final, cast

from sloserve.cli.flag_errors import about_flag, named_as_flags
from sloserve.core import numbers as numbers_of_text
from sloserve.core.errors import ConfigError
from sloserve.engine.virtual.drafts import ACCEPTANCE, ROUND_SHARE, Drafts, spread_of
from sloserve.engine.virtual.engine_settings import EngineSettings, Swapping
from sloserve.estimator.step_time.profile import Profile, load_profile
from sloserve.sim.experiment import DEFAULT_LOADS, SHIPPED, Experiment
from sloserve.sim.experiment_options import SimulateOptions
from sloserve.sim.run_name import run_names
from sloserve.sim.workloads.drawn_tenants import parse_parts
from sloserve.sim.workloads.named_slos import find_slos
from sloserve.sim.workloads.tasks.offered import as_workload, asked_tasks
from sloserve.sim.workloads.window import WHOLE, parse_window
from sloserve.sim.workloads.workload_registry import Workload, asked_workload

EQUAL: Final = "equal"
"""The weights of tenants that all have the same share."""


def build_experiment(options: SimulateOptions) -> Experiment:
    """Return the experiment that the options describe.

    Raises: ConfigError for an option that contradicts another, or a value out of range.
    """
    aged_share = SHIPPED.aged_share if options.aged_share is None else options.aged_share
    if options.seeds < 1:
        raise ConfigError(f"--seeds: {options.seeds} is not a whole number >= 1")
    if options.max_requests < 1:
        raise ConfigError(f"--max-requests: {options.max_requests} is not a whole number >= 1")
    if not 0.0 <= aged_share <= 1.0:
        raise ConfigError(f"--aged-share: {aged_share} is not within 0..1")
    slos = find_slos(options.slo) if options.slo is not None else None
    tasks = asked_tasks(options, slos)
    source = asked_workload(options) if tasks is None else as_workload(tasks)
    load, rate_scale = options.load, options.rate_scale
    if tasks is not None:
        pass
    elif load is None and options.rps is None and rate_scale is None:
        if options.trace is not None:
            rate_scale = 1.0
        else:
            load = ",".join(f"{x:g}" for x in DEFAULT_LOADS)
    with about_flag("--profile"):
        profile = load_profile(options.profile)
    if options.known_profile is not None:
        with about_flag("--known-profile"):
            load_profile(options.known_profile)  # an unknown one fails here
    return Experiment(
        workload=source,
        profile=profile,
        engine=_engine_settings(options, profile, prefix_caching=tasks is not None or _shares_prompts(source)),
        policies=run_names(listed(options.policy), listed(options.admission)),
        seeds=tuple(range(options.seeds)),
        max_requests=options.max_requests if tasks is None else tasks.count,
        loads=numbers("--load", load),
        rps=numbers("--rps", options.rps) if tasks is None else tasks.rates,
        rate_scale=rate_scale,
        slos=slos,
        window=WHOLE if options.window is None else parse_window(options.window),
        aged_share=aged_share,
        plan_share=SHIPPED.plan_share if options.plan_share is None else options.plan_share,
        plan_cost=options.plan_cost,
        step_noise=options.step_noise,
        length_model=None if options.length_model is None else str(options.length_model),
        known_profile=options.known_profile,
        engine_kind=options.engine,
        tenant_weights=_weights(options.tenant_shares),
        tasks=tasks,
    )


def _shares_prompts(workload: Workload) -> bool:
    """Return whether prompts have ids. Without them every prompt is unique, and hashing it would only cost time."""
    return any(request.prefix_ids for request in workload.requests(1, 0))


def _weights(text: str | None) -> dict[str, float] | None:
    """Return the weights of tenants' shares; ``None`` where policies do not see tenants."""
    if text is None:
        return None
    return {} if text == EQUAL else parse_parts("--tenant-shares", text)


def _engine_settings(options: SimulateOptions, profile: Profile, *, prefix_caching: bool) -> EngineSettings:
    """Return the profile's engine with the changes of the options; no prompt is longer than the KV cache."""
    sizes = {
        name: getattr(profile, name) if getattr(options, name) is None else getattr(options, name)
        for name in ("kv_blocks", "max_num_seqs", "max_num_batched_tokens", "max_model_len")
    }
    context = sizes.pop("max_model_len")
    if context < 1:
        raise ConfigError(f"--max-model-len: {context} tokens is not at least 1")
    with named_as_flags():
        return EngineSettings.of_profile(
            profile,
            **sizes,
            max_model_len=context,
            swap_space_gib=options.swap_space_gib,
            link_gb_per_s=options.link_gb_per_s,
            swapping=cast(Swapping, options.swapping),  # refused there if it is another word
            enable_prefix_caching=prefix_caching,
            drafts=_drafts(options),
        )


def _drafts(options: SimulateOptions) -> Drafts | None:
    """Return the drafts that the options ask for. Raises: ConfigError for figures of drafts where there are none."""
    acceptance, spread, share = options.draft_acceptance, options.draft_acceptance_spread, options.draft_round_share
    if not options.num_speculative_tokens:
        given = {"--draft-acceptance": acceptance, "--draft-acceptance-spread": spread, "--draft-round-share": share}
        for flag, value in given.items():
            if value is not None:
                raise ConfigError(f"{flag}: {value} for an engine without drafts; give --num-speculative-tokens, too")
        return None
    mean = ACCEPTANCE if acceptance is None else acceptance
    return Drafts(
        options.num_speculative_tokens,
        mean,
        spread_of(mean) if spread is None else spread,
        ROUND_SHARE if share is None else share,
    )


def listed(text: str) -> list[str]:
    """Return the parts of a comma-separated list."""
    return [part.strip() for part in text.split(",") if part.strip()]


def numbers(flag: str, text: str | None) -> tuple[float, ...] | None:
    """Return the numbers of a comma-separated list. Raises: ConfigError."""
    if text is None:
        return None
    try:
        return tuple(numbers_of_text.number(x) for x in text.split(","))
    except ValueError as error:
        raise ConfigError(f"{flag}: {text!r} is not a comma-separated list of numbers: {error}") from None
