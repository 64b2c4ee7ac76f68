"""A profile: one model on one machine, as far as scheduling is concerned. It is read from YAML; several are shipped.

A profile says where its figures come from, how large their error is, and for which steps they were measured; the
simulator counts the steps outside. A file with anything missing, unknown or out of range is refused with one error
that lists every problem.
"""

import functools
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sloserve.core.errors import ConfigError
from sloserve.core.files.json_schema import schema_of
from sloserve.core.files.kinds import reading
from sloserve.core.files.model import read_yaml_model
from sloserve.core.kernels.kv_layout import STATE_WINDOW, KVGroups, KVLayout
from sloserve.core.nearest import did_you_mean
from sloserve.estimator.data_files import data_folders
from sloserve.estimator.step_time.inverse import ROUNDING
from sloserve.estimator.step_time.latency import Bilinear, DistServe, Hinge, NotNegative, Positive, StepLoad

Count = Annotated[int, Field(ge=1)]
NotBelowZero = Annotated[int, Field(ge=0)]
Text = Annotated[str, Field(min_length=1)]

_BALANCED = 0.05
"""A mean ratio to published times that is nearer to 1 is said to be neither too short nor too long."""


class _ProfileSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


class Error(_ProfileSection):
    """How far the latency form is from what it was fitted to."""

    mape_percent: NotNegative | None
    """mean absolute percentage error over the fit's own grid; null where none was published"""
    text: Text
    """what the figure covers, and what it leaves out"""


class Grid(_ProfileSection):
    """The largest step the latency form was fitted on, in each direction."""

    max_step_tokens: Count
    """tokens in one step, prefill and decode together"""
    max_prefills: Count
    """prompts in one step"""
    max_prefill_attention_tokens2: Count
    """sum over the step's prefills of chunk * (chunk + 2 * prefix)"""
    max_decode_seqs: Count
    """decoding sequences in one step"""
    max_decode_context_tokens: Count
    """context of those, summed"""

    def covers(self, load: StepLoad) -> bool:
        """Return whether the step lies within the fit's range in each direction."""
        return (
            load.tokens <= self.max_step_tokens
            and load.num_prefills <= self.max_prefills
            and load.prefill_attention_tokens2 <= self.max_prefill_attention_tokens2
            and load.decode_seqs <= self.max_decode_seqs
            and load.decode_context_tokens <= self.max_decode_context_tokens
        )


class KVGroup(_ProfileSection):
    """KV cache groups that are counted alike; a rule that does not hold is 0.

    See :class:`~sloserve.core.kernels.kv_layout.KVGroups`.
    """

    num_groups: Count
    """how many"""
    block_size: Count
    """tokens in a block"""
    window_tokens: NotBelowZero = 0
    """tokens that a token sees, itself included; 2 for a Mamba layer that keeps the last state alone"""
    chunk_tokens: NotBelowZero = 0
    """tokens of a chunk: nothing before the last multiple of them is seen"""
    states: NotBelowZero = 0
    """states of Mamba layers kept at the ends of chunks, for the prefix cache: steps in flight"""
    checkpoints: NotBelowZero = 0
    """1 where the last chunk of a prompt keeps a state inside it"""
    spare_blocks: NotBelowZero = 0
    """blocks for draft tokens, beside the blocks of tokens"""

    def groups(self, max_model_len: int, *, caches: bool) -> KVGroups:
        """Return the groups of an engine.

        Without a prefix cache vLLM keeps one state of a request, in one block of any length.

        Args:
            max_model_len: Context length in tokens.
            caches: Whether the engine has a prefix cache.
        """
        found = KVGroups(**self.model_dump())
        if caches or not found.states:
            return found
        return found._replace(block_size=max_model_len, window_tokens=STATE_WINDOW, states=0, checkpoints=0)


class KVCache(_ProfileSection):
    """The KV cache of a model with layers that do not all keep the whole context: one pool of blocks for all groups."""

    groups: Annotated[tuple[KVGroup, ...], Field(min_length=1)]
    """KV cache groups as vLLM makes them of the model's layers"""
    blocks: Count
    """blocks of the pool"""
    block_bytes: Count
    """bytes of a block, the same in all groups"""
    context_tokens: Count
    """tokens of the requests of which kv_capacity_tokens and kv_bytes_per_token speak"""

    @property
    def capacity_tokens(self) -> int:
        """Tokens that the pool holds, of requests of ``context_tokens`` each."""
        layout = KVLayout(tuple(KVGroups(**one.model_dump()) for one in self.groups))
        return int(layout.capacity_tokens(self.blocks, self.context_tokens))


class Published(_ProfileSection):
    """How a derived profile compares with published times of a server with the same model on the same hardware."""

    source: Text
    """who published the times, and of which set-up"""
    figures: Count
    """number of published times"""
    mape_percent: NotNegative
    """mean absolute percentage error of the profile against them"""
    ratio: Positive
    """mean of the profile's times divided by the published ones"""


class Derived(_ProfileSection):
    """Mark of a profile with derived step times: no step of this model on this hardware was measured for it."""

    method: Text
    """what the step times were derived from"""
    published: Published | None
    """comparison with published times; null where none were found"""


class Profile(_ProfileSection):
    """One model on one machine. Everything in bytes or tokens is summed over the tensor-parallel ranks."""

    name: Text
    """name to call it by"""
    hardware: Text
    """GPUs, as text"""
    model: Text
    """model, as text"""
    tensor_parallel: Count
    """GPUs that one engine spans"""
    vllm_version: Text | None
    """version the figures were taken with; null where the source does not say"""
    source: Text
    """where the figures come from"""
    licence: Text
    """licence of the data, and its authors"""
    error: Error
    """mape_percent and text: how far the latency form is from what it was fitted to"""
    derived: Derived | None = None
    """method and published: set where no step was measured; null where steps, or all of their kernels, were measured"""
    kv_bytes_per_token: Count
    """bytes of KV cache a token takes: 2 * layers * KV heads * head size * bytes a number; with kv_cache on average"""
    kv_capacity_tokens: Count
    """tokens the KV cache holds; with kv_cache of requests of its context_tokens"""
    block_size: Count
    """tokens in a KV block; with kv_cache in its largest"""
    kv_cache: KVCache | None = None
    """groups of layers and blocks; null where all layers keep the whole context"""
    link_bandwidth_gb_per_s: Positive
    """host to GPU and back, 1e9 bytes/s in one direction"""
    engine_overhead_ms: NotNegative
    """time a step takes on top of the latency form: scheduling, sampling, launch gaps"""
    max_model_len: Count
    """most tokens of prompt and output together"""
    max_num_seqs: Count
    """default of the engine's flag of this name"""
    max_num_batched_tokens: Count
    """default of the engine's flag of this name"""
    tfs_tokens: Count | None = None
    """tokens a step from which throughput hardly grows (EconoServe's target forward size); null where not measured"""
    start_s: Positive | None = None
    """time from starting the engine until it can serve; null where not measured"""
    load_s: Positive | None = None
    """the part of start_s that loading the weights takes; null where not measured"""
    weights_bytes: Count | None = None
    """bytes of the weights on the device; null where not known"""
    sleep_s: Positive | None = None
    """time to move the weights to host memory (vLLM's sleep level 1); null where not measured"""
    wake_s: Positive | None = None
    """time to move them back; null where not measured"""
    reload_s: Positive | None = None
    """time to read them from disk into an engine that is there (sleep level 2, then reload); null where not measured"""
    grid: Grid
    """the largest step the latency form was fitted on"""
    latency: Annotated[Hinge | DistServe | Bilinear, Field(discriminator="form")]
    """form (hinge, distserve or bilinear) and its coefficients"""

    @model_validator(mode="after")
    def _agrees_with_its_kv_cache(self) -> Self:
        if self.kv_cache is not None and self.kv_capacity_tokens != self.kv_cache.capacity_tokens:
            raise ValueError(
                f"kv_capacity_tokens: {self.kv_capacity_tokens} is not {self.kv_cache.capacity_tokens}, which the "
                f"{self.kv_cache.blocks} blocks of kv_cache hold of requests of {self.kv_cache.context_tokens} tokens"
            )
        return self

    @property
    def marker(self) -> str:
        """What a user must know who picks the profile: that it is derived, and its error; empty for any other."""
        if self.derived is None:
            return ""
        found = self.derived.published
        if found is None:
            return "derived, not compared with any published time"
        times = "1 published time" if found.figures == 1 else f"{found.figures} published times"
        side = "" if abs(found.ratio - 1.0) < _BALANCED else " (too short)" if found.ratio < 1.0 else " (too long)"
        return f"derived, {found.mape_percent:.0f} % off {times}{side}"

    @property
    def title(self) -> str:
        """The name, and the marker where there is one."""
        return f"{self.name} ({self.marker})" if self.marker else self.name

    @property
    def kv_blocks(self) -> int:
        """Whole KV blocks that fit."""
        return self.kv_capacity_tokens // self.block_size if self.kv_cache is None else self.kv_cache.blocks

    @property
    def _overhead_s(self) -> float:
        return self.engine_overhead_ms / 1000.0

    def step_s(self, load: StepLoad) -> float:
        """Return the seconds that the engine takes for the step, its overhead included; 0 for a step without tokens."""
        return self.latency.step_s(load) + self._overhead_s if load.tokens else 0.0

    def prefill_within(self, seconds: float, base: StepLoad, prefix_tokens: int) -> int:
        """Return the most tokens of one more chunk in a step of ``seconds``; see StepLatency."""
        return self.latency.prefill_within(seconds * ROUNDING - self._overhead_s, base, prefix_tokens)

    def decode_bound_s(self, load: StepLoad) -> float:
        """Return the time of the load's decodes alone, in seconds, as a bound that never falls; see FittedLatency."""
        return self.latency.decode_bound_s(load) + self._overhead_s if load.decode_seqs else 0.0

    def decode_floor_s(self, load: StepLoad) -> float:
        """Return the seconds that the load's decodes surely add to the smallest step; see FittedLatency."""
        return self.latency.decode_floor_s(load)

    def within_grid(self, load: StepLoad) -> bool:
        """Return whether the latency form was fitted on steps as large as this one; else it extrapolates."""
        return self.grid.covers(load)


def _files() -> Mapping[str, Traversable]:
    """Return the file of each profile that has a name; no other package replaces a profile of this one."""
    found: dict[str, Traversable] = {}
    for folder in data_folders():
        profiles = folder / "profiles"
        for file in profiles.iterdir() if profiles.is_dir() else ():
            if file.name.endswith(".yaml"):
                found.setdefault(file.name.removesuffix(".yaml"), file)
    return found


@functools.cache
def profile_names() -> tuple[str, ...]:
    """Return the names of the profiles that are shipped or added by installed packages, sorted."""
    return tuple(sorted(_files()))


class ProfileName(str):
    """Name of a shipped profile. As the type of a policy's option it is read over the network too; a path is not."""

    def __new__(cls, name: str) -> "ProfileName":
        if name not in profile_names():
            raise ValueError(f"no profile of this name is shipped{_closest(name)}; `sloserve workloads` lists them")
        return super().__new__(cls, name)


_MOST_HINTS = 5
"""The most shipped profiles that a message names."""


def _closest(name: str) -> str:
    """Return a hint with the shipped profiles that begin with ``name`` if there are several, else the one most like it.

    A message does not list all of them: a client's error has a bounded length, and new profiles would lengthen it.
    """
    begun = [one for one in profile_names() if name and one.startswith(name.casefold())]
    if len(begun) > 1:
        more = ", ..." if len(begun) > _MOST_HINTS else ""
        return f"; did you mean one of {', '.join(begun[:_MOST_HINTS])}{more}?"
    return did_you_mean(name, profile_names())


def load_profile(name_or_path: str | Path) -> Profile:
    """Return the shipped profile of this name, or the one in this YAML file.

    Text that names a shipped profile is never a path; write ``./name`` for a file of that name.

    Raises: ConfigError when there is no such profile, or the file is not a complete and valid one.
    """
    name = str(name_or_path)
    if isinstance(name_or_path, str) and name in profile_names():
        return _shipped(name)
    path = Path(name_or_path)
    if not path.is_file() and path.suffix not in (".yaml", ".yml") and path.name == name:
        raise ConfigError(
            f"unknown profile {name!r}{_closest(name)}; `sloserve workloads` lists the shipped ones; a path to a YAML "
            "file is accepted as well"
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise ConfigError(f"profile {name}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    with reading("profile", path):
        return read_yaml_model(Profile, name, text)


@functools.cache
def _shipped(name: str) -> Profile:
    return read_yaml_model(Profile, f"profile {name}", _files()[name].read_text(encoding="utf-8"))


def profile_schema() -> dict[str, Any]:
    """Return the JSON schema of Profile, for ``sloserve schema profile``."""
    return schema_of(Profile, "Profile of sloserve")
