"""The router's file: models, their quality by task, and how a model is chosen for a request that names none.

This is an example::

    models: [opt-125m, opt-1.3b, opt-6.7b]
    quality:
      hellaswag: {opt-125m: 0.45, opt-1.3b: 0.78, opt-6.7b: 1.0}
      piqa: {opt-125m: 0.82, opt-1.3b: 0.96, opt-6.7b: 1.0}
    task_by_class: {interactive: piqa}
    sets: {small: [opt-125m, opt-1.3b]}
    token_ms: 40
    policy: greedy
    system: {speed: {opt-125m: {base_ms: 1.957, seq_ms: 0.0058}, ...}, devices: 4}

``system`` is what ``sloserve train-router`` trains on; serving does not read it. Every fault is one line that names
file, line, column, key, value and what is allowed.
"""

from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from sloserve.core.errors import ConfigError
from sloserve.core.files.json_schema import schema_of
from sloserve.core.files.kinds import reading
from sloserve.core.files.marked_yaml import Node, load_yaml, parse_yaml
from sloserve.core.files.model import NOT_TINY, Allowed, Problem, at_place, check_model, unknown
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.profile import Profile, load_profile
from sloserve.fleet.router.arrivals import Phases
from sloserve.fleet.router.environment import Speed, System
from sloserve.fleet.router.quality import QualityTable

AUTO = "auto"
"""Name under which a request asks for the set of all models."""
MAX_MODELS, MAX_TASKS, MAX_SETS = 64, 256, 64
MOST_EXPLORED = 0.1
"""Greatest share of requests that may explore."""
_MOST_MS, _LEAST_RATE, _MOST_RATE = 1e7, 1e-4, 1e6
_USUAL_BATCH = 64
"""Number of decoding requests beside which the cost of a prompt token is taken."""

Name = Annotated[str, Field(min_length=1, max_length=200)]
Share = Annotated[float, Field(strict=True, ge=0.0, le=1.0), Allowed("a number from 0 to 1")]
Weight = Annotated[float, Field(strict=True, gt=0.0, le=100.0), NOT_TINY, Allowed("a number above 0, up to 100")]
Ms = Annotated[float, Field(strict=True, gt=0.0, le=1e7), NOT_TINY, Allowed("a number of milliseconds above 0")]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SpeedEntry(_Section):
    """A replica's speed: from a profile, or as step = base_ms + seq_ms * batch."""

    profile: Annotated[str | None, Allowed("the name or file of a profile")] = None
    base_ms: Annotated[Ms | None, Allowed("a number of milliseconds above 0")] = None
    seq_ms: Annotated[Ms | None, Allowed("a number of milliseconds above 0")] = None


class SystemSection(_Section):
    """The system that training simulates.

    Args:
        prompt_tokens: Prompt tokens of every request, or by task.
        network_ms: Least and greatest time that the network adds, in milliseconds.
        rates: Least and greatest rate, in requests per second.
        task_weights: Weight by task; 1 for a task without one.
        task_token_ms: Guarantee by task, in milliseconds per token; ``token_ms`` for a task without one.
    """

    speed: Annotated[
        dict[Name, SpeedEntry], Allowed("a mapping of model to {profile: NAME} or {base_ms: A, seq_ms: B}")
    ]
    devices: Annotated[int, Field(strict=True, ge=1, le=64), Allowed("a whole number from 1 to 64")] = 4
    interference: Share = 0.1
    prompt_tokens: Annotated[
        Annotated[int, Field(strict=True, ge=0, le=10**6)] | dict[Name, Annotated[int, Field(strict=True, ge=0)]],
        Allowed("a number of tokens, or a mapping of task to one"),
    ] = 0
    output_tokens: Annotated[int, Field(strict=True, ge=1, le=10**5), Allowed("a whole number from 1 to 100000")] = 128
    network_ms: Annotated[tuple[float, float], Allowed("two numbers of milliseconds, as [20, 2000]")] = (0.0, 0.0)
    rates: Annotated[tuple[float, float], Allowed("two rates per second, as [0.25, 64]")] = (0.25, 64.0)
    task_weights: Annotated[dict[Name, Weight], Allowed("a mapping of task to a number above 0")] = {}
    task_token_ms: Annotated[dict[Name, Ms], Allowed("a mapping of task to milliseconds above 0")] = {}


class RouterSettings(_Section):
    """The contents of a router's file.

    Args:
        models: Names of the models, smallest first.
        weights: Weight by class, 1 for others; a class of more weight counts more in training and is one of the
            features.
        token_ms: Guarantee of a request without targets, as mean milliseconds per output token.
        error: Relative standard deviation of predicted times, until measured.
        policy: ``greedy``, ``shipped`` or a file of ``sloserve train-router``.
        shadow: a policy, named likewise, that only says what it would have chosen.
        conversations: The most conversations that are remembered.
        rollback: Whether a trained policy is compared with greedy while it serves, and given up if it is worse.
        explore: Share of the requests that go to a model drawn evenly from the models that should be in time.
        log: File to which each choice and its outcome are written, relative to the router's file; ``None`` for none.
        log_mib: Most size of that file and of the older ones beside it, in MiB.
    """

    models: Annotated[list[Name], Field(min_length=1, max_length=MAX_MODELS), Allowed("a list of models")]
    quality: Annotated[
        dict[Name, dict[Name, Share]],
        Field(min_length=1, max_length=MAX_TASKS),
        Allowed("a mapping of task to a mapping of model to a number from 0 to 1"),
    ]
    task_by_class: Annotated[dict[Name, Name], Allowed("a mapping of class to task")] = {}
    sets: Annotated[dict[Name, list[Name]], Field(max_length=MAX_SETS), Allowed("a mapping of name to models")] = {}
    weights: Annotated[dict[Name, Weight], Allowed("a mapping of class to a number above 0")] = {}
    token_ms: Ms = 40.0
    error: Share = 0.05
    policy: Name = "greedy"
    shadow: Annotated[Name | None, Allowed("greedy, shipped or a file")] = None
    conversations: Annotated[int, Field(strict=True, ge=0, le=10**7), Allowed("a whole number >= 0")] = 100_000
    rollback: Annotated[bool, Field(strict=True), Allowed("true or false")] = True
    explore: Annotated[
        float, Field(strict=True, ge=0.0, le=MOST_EXPLORED), Allowed(f"a number from 0 to {MOST_EXPLORED:g}")
    ] = 0.0
    log: Annotated[Name | None, Allowed("the path of a file")] = None
    log_mib: Annotated[int, Field(strict=True, ge=1, le=10**6), Allowed("a whole number of MiB from 1")] = 256
    system: Annotated[SystemSection | None, Allowed("a mapping: what train-router simulates")] = None

    @property
    def table(self) -> QualityTable:
        return QualityTable(self.quality, self.task_by_class)


ROUTER_FILE: Final = "router"
"""What a router's file is among :data:`~sloserve.core.files.kinds.KINDS`."""


def read_router(path: Path) -> RouterSettings:
    """Return the settings in the file at ``path``. Raises: ConfigError that lists every fault, one line each."""
    with reading(ROUTER_FILE, path):
        return router_in(load_yaml(path))


def parse_router(text: str, source: str = "router") -> RouterSettings:
    """Return the settings in ``text``; ``source`` stands for the file in messages.

    Raises: as :func:`read_router`.
    """
    return router_in(parse_yaml(text, source))


def router_in(root: Node) -> RouterSettings:
    """Return the settings in a file that was read. Raises: as :func:`read_router`."""
    if not isinstance(root.value, dict):
        raise root.not_allowed("a mapping of fields to values")
    settings, problems = check_model(RouterSettings, root.plain())
    problems = problems if settings is None else router_problems(settings)
    if settings is None or problems:
        raise ConfigError("\n".join(at_place(root, problem) for problem in problems))
    return settings


def router_problems(settings: RouterSettings) -> list[Problem]:
    """Return problems between fields: names that stand for nothing, models without a quality."""
    models, tasks = tuple(settings.models), tuple(settings.quality)
    named: list[tuple[tuple[str | int, ...], str, tuple[str, ...]]]
    named = [(("quality", task, m), m, models) for task, row in settings.quality.items() for m in row]
    named += [(("task_by_class", c), task, tasks) for c, task in settings.task_by_class.items()]
    named += [(("sets", name, i), m, models) for name, of in settings.sets.items() for i, m in enumerate(of)]
    if settings.system is not None:
        of = settings.system
        named += [(("system", "speed", m), m, models) for m in of.speed]
        named += [(("system", "task_weights", t), t, tasks) for t in of.task_weights]
        named += [(("system", "task_token_ms", t), t, tasks) for t in of.task_token_ms]
        if isinstance(of.prompt_tokens, dict):
            named += [(("system", "prompt_tokens", t), t, tasks) for t in of.prompt_tokens]
    found = [Problem(path, f"{name!r} {unknown(name, known)}") for path, name, known in named if name not in known]
    lists: list[tuple[tuple[str | int, ...], list[str]]] = [(("models",), settings.models)]
    lists += [(("sets", name), of) for name, of in settings.sets.items()]
    for path, listed in lists:
        found += [Problem((*path, i), f"{m!r} is there already") for i, m in enumerate(listed) if m in listed[:i]]
        found += [] if listed else [Problem(path, "no models; name at least one, or leave the set out")]
    for name in (AUTO, *models):
        if name in settings.sets:
            found.append(Problem(("sets", name), f"{name!r} is taken; give the set another name"))
    for task, row in settings.quality.items():
        missing = [model for model in models if model not in row]
        if missing:
            found.append(Problem(("quality", task), f"no quality of {', '.join(missing)}; give a number from 0 to 1"))
    return found + ([] if settings.system is None else _system_problems(settings.system, models))


def _system_problems(system: SystemSection, models: tuple[str, ...]) -> list[Problem]:
    found = []
    low, high = system.network_ms
    if not (0.0 < low <= high <= _MOST_MS or low == high == 0.0):
        text = f"{low:g}, {high:g} are not two ascending numbers above 0 and up to {_MOST_MS:g}, or 0 and 0"
        found.append(Problem(("system", "network_ms"), text))
    low, high = system.rates
    if not _LEAST_RATE <= low <= high <= _MOST_RATE:
        text = f"{low:g}, {high:g} are not two ascending numbers from {_LEAST_RATE:g} to {_MOST_RATE:g}"
        found.append(Problem(("system", "rates"), text))
    for model, entry in system.speed.items():
        if (entry.profile is None) == (entry.base_ms is None) or (entry.base_ms is None) != (entry.seq_ms is None):
            found.append(Problem(("system", "speed", model), "give profile, or base_ms and seq_ms"))
    for model in models:
        if model not in system.speed:
            text = f"no speed of {model}; give {{profile: NAME}} or {{base_ms: A, seq_ms: B}}"
            found.append(Problem(("system", "speed"), text))
    return found


def system_of(settings: RouterSettings) -> tuple[System, Phases]:
    """Return the system and the arrivals that ``system`` of faultless settings says to simulate.

    Raises: ConfigError where it is missing, or names a profile that cannot be read.
    """
    of = settings.system
    if of is None:
        raise ConfigError("system: is missing; training needs to know what it simulates (docs/router.md)")
    tasks = tuple(settings.quality)
    prompts = of.prompt_tokens if isinstance(of.prompt_tokens, dict) else dict.fromkeys(tasks, of.prompt_tokens)
    prompt_tokens = np.array([prompts.get(task, 0) for task in tasks], np.float64)
    system = System(
        models=tuple(settings.models),
        speeds=tuple(_speed(settings, model, float(prompt_tokens.mean())) for model in settings.models),
        tasks=tasks,
        quality=np.array([settings.table.of(task, settings.models) for task in tasks]),
        weights=np.array([of.task_weights.get(task, 1.0) for task in tasks]),
        prompt_tokens=prompt_tokens,
        devices=of.devices,
        output_tokens=of.output_tokens,
        token_s=np.array([of.task_token_ms.get(task, settings.token_ms) / 1e3 for task in tasks]),
        interference=of.interference,
        network_s=(of.network_ms[0] / 1e3, of.network_ms[1] / 1e3),
        error=settings.error,
    )
    return system, Phases.between(of.rates, float(system.limit_s.mean()))


def _speed(settings: RouterSettings, model: str, prompt_tokens: float) -> Speed:
    assert settings.system is not None
    entry = settings.system.speed[model]
    if entry.profile is not None:
        return profile_speed(load_profile(entry.profile), prompt_tokens, settings.system.output_tokens)
    assert entry.base_ms is not None and entry.seq_ms is not None
    return Speed(entry.base_ms / 1e3, entry.seq_ms / 1e3)


def profile_speed(profile: Profile, prompt_tokens: float, output_tokens: int) -> Speed:
    """Return the line in the batch size that stands for a profile.

    Contexts are taken halfway through the output of requests, and prompt tokens cost what they add to a step of a usual
    batch.
    """
    context = max(round(prompt_tokens + output_tokens / 2), 1)
    one, many = (profile.step_s(StepLoad.of([], [context] * n)) for n in (1, profile.max_num_seqs))
    seq_s = max(many - one, 0.0) / max(profile.max_num_seqs - 1, 1)
    prompt = max(round(prompt_tokens), 1)
    usual = [context] * _USUAL_BATCH
    beside = profile.step_s(StepLoad.of([(prompt, 0)], usual)) - profile.step_s(StepLoad.of([], usual))
    return Speed(one - seq_s, seq_s, max(beside, 0.0) / prompt, profile.max_num_seqs)


def router_schema() -> dict[str, Any]:
    """Return the JSON schema of RouterSettings, for ``sloserve schema router``."""
    return schema_of(RouterSettings, "Router of sloserve")
