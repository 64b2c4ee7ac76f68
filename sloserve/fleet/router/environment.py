"""Many small serving systems in virtual time, advanced together: where routers learn and are judged.

A system has ``devices`` devices with a replica of each model on each. A replica shares its time equally among the
requests of its batch: a step gives each of them one token and takes ``base + seq * batch``, lengthened by what the
other replicas on the device do. Beyond ``max_num_seqs`` requests wait, first come, first served. A prompt takes the
replica alone for a while. Every request has the same number of output tokens, so that one served earlier ends earlier,
and where a replica is within its tokens is one number. A request earns the quality of its model for its task, times
the weight of its task, if its mean time per output token, network included, is within the guarantee; else nothing.

Each call of :meth:`Environment.next_arrivals` advances every system by one event of its own. Deterministic by seed.
``benchmarks/router/gain.py`` measures how far this is from the model of vLLM's engine.

Source: Quality-of-Service Aware LLM Serving, Sec. 5.1.1. Differs: the paper used real engines and leaves output
lengths open.
"""

from dataclasses import dataclass, field

import numpy as np

from sloserve.core.arrays import FloatArray, IntArray
from sloserve.core.errors import ConfigError
from sloserve.fleet.router.arrivals import Arrivals

RING = 1024
"""The most requests that one replica holds; one more is refused, and earns nothing. None of them would be in time."""
RATE_MEMORY = 16.0
"""Number of arrivals over which the estimated rate is averaged."""


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of a replica, in seconds: a step takes base_s + seq_s * batch, a prompt token prompt_token_s once."""

    base_s: float
    seq_s: float
    prompt_token_s: float = 0.0
    max_num_seqs: int = 256

    def __post_init__(self) -> None:
        if not (self.base_s > 0.0 and self.seq_s >= 0.0 and self.prompt_token_s >= 0.0):
            raise ConfigError(f"speed of a replica: {self} is not above 0")
        if not 1 <= self.max_num_seqs <= RING // 2:
            raise ConfigError(f"max_num_seqs: {self.max_num_seqs} is not within 1..{RING // 2}")


@dataclass(frozen=True, slots=True, eq=False)
class System:
    """A simulated system: tasks, models and devices.

    Args:
        models: Names of the models, smallest first.
        quality: Quality of each model for each task, ``[tasks, models]``.
        weights: Weight of each task, ``[tasks]``.
        token_s: Guarantee by task, as mean seconds per token, ``[tasks]``.
        interference: Share of the other replicas' step by which a step on the same device takes longer.
        prompt_tokens: Prompt tokens by task, ``[tasks]``.
        network_s: Least and greatest seconds that the network adds to a request, drawn evenly by the logarithm.
        error: Standard deviation of the predictor's relative error, drawn once for each model and phase of the
            arrivals.
    """

    models: tuple[str, ...]
    speeds: tuple[Speed, ...]
    tasks: tuple[str, ...]
    quality: FloatArray
    weights: FloatArray
    prompt_tokens: FloatArray
    token_s: FloatArray
    devices: int = 4
    output_tokens: int = 128
    interference: float = 0.1
    network_s: tuple[float, float] = (0.0, 0.0)
    error: float = 0.05

    def __post_init__(self) -> None:
        shape = (len(self.tasks), len(self.models))
        by_task = (self.weights, self.prompt_tokens, self.token_s)
        if self.quality.shape != shape or any(column.shape != shape[:1] for column in by_task):
            raise ConfigError(f"quality of {self.quality.shape} does not fit {shape[0]} tasks and {shape[1]} models")

    @property
    def limit_s(self) -> FloatArray:
        """The longest time from arrival to the last token within the guarantee, by task, in seconds, ``[tasks]``."""
        return self.token_s * self.output_tokens


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """What a router may know about n arriving requests, each in a system of its own.

    Columns are ``[n]`` or ``[n, models]``.

    Args:
        least: Number of requests at the least loaded replica of each model.
        mean: Mean number of requests at the replicas of each model.
        predicted_s: Seconds until the last token if the request went to the least loaded replica, without the network,
            by a predictor that is wrong by ``System.error``.
        rate_per_s: Estimated rate of arrivals, in requests per second.
        quality: Quality of each model for the request's task.
        weight: Weight of the request's task.
    """

    least: FloatArray
    mean: FloatArray
    predicted_s: FloatArray
    quality: FloatArray
    weight: FloatArray
    rate_per_s: FloatArray
    network_s: FloatArray
    task: IntArray


@dataclass(slots=True)
class Finished:
    """Requests that ended, by the tickets under which they were served.

    Args:
        rewards: Reward of each request, with its weight.
        ended_s: Time when each ended, in seconds; infinite for a refused request.
    """

    tickets: list[IntArray] = field(default_factory=list)
    rewards: list[FloatArray] = field(default_factory=list)
    ended_s: list[FloatArray] = field(default_factory=list)

    def add(self, tickets: IntArray, rewards: FloatArray, ended_s: FloatArray) -> None:
        self.tickets.append(tickets)
        self.rewards.append(rewards)
        self.ended_s.append(ended_s)

    def take(self) -> tuple[IntArray, FloatArray, FloatArray]:
        """Return all of them, each column ``[n]``, and forget them here."""
        if not self.tickets:
            return np.empty(0, np.int64), np.empty(0), np.empty(0)
        taken = np.concatenate(self.tickets), np.concatenate(self.rewards), np.concatenate(self.ended_s)
        for column in (self.tickets, self.rewards, self.ended_s):
            column.clear()
        return taken


class Environment:
    """``systems`` independent copies of ``system`` under ``arrivals``, which cover the same number of systems."""

    def __init__(self, system: System, arrivals: Arrivals, systems: int, rng: np.random.Generator) -> None:
        models, devices = len(system.models), system.devices
        replicas = devices * models
        self.system, self.arrivals, self.finished = system, arrivals, Finished()
        self._rng = rng
        self._base_s = np.tile([speed.base_s for speed in system.speeds], devices)
        self._seq_s = np.tile([speed.seq_s for speed in system.speeds], devices)
        self._prompt_s = np.tile([speed.prompt_token_s for speed in system.speeds], devices)
        self._most = np.tile([speed.max_num_seqs for speed in system.speeds], devices)
        self.now_s = np.zeros(systems)
        self._tokens = np.zeros((systems, replicas))  # that each replica has given to each request of its batch
        self._stall_s = np.zeros((systems, replicas))  # prompts to compute before its next step
        self._count = np.zeros((systems, replicas), np.int64)
        self._head = np.zeros((systems, replicas), np.int64)
        self._next = np.full((systems, replicas), np.inf)  # tokens at which its oldest request ends
        shape = (systems, replicas, RING)
        self._end = np.zeros(shape)
        self._due_s, self._value, self._ticket = np.zeros(shape), np.zeros(shape), np.zeros(shape, np.int64)
        self._gap_s = np.zeros(systems)
        self._bias = np.ones((systems, models))
        self._task = np.zeros(systems, np.int64)
        self._network_s = np.zeros(systems)
        everywhere = np.arange(systems)
        self._arrival_s = self.now_s + arrivals.gaps_s(everywhere, self.now_s)
        self._gap_s[:] = 1.0 / arrivals.rate_per_s
        arrivals.entered[:] = True
        self._draw(everywhere)

    @property
    def over(self) -> bool:
        """Whether nothing runs and nothing will arrive."""
        return not self._count.any() and bool(np.isinf(self._arrival_s).all())

    def next_arrivals(self) -> IntArray:
        """Advance every system by one event; return the systems in which it was an arrival.

        Serve these requests before the next call.
        """
        step_s = self._step_s()
        with np.errstate(invalid="ignore"):
            ends_in_s = self._stall_s + (self._next - self._tokens) * step_s  # inf where idle
        ends_in_s[self._count == 0] = np.inf
        first = ends_in_s.argmin(axis=1)
        rows = np.arange(first.size)
        ends_s = np.maximum(ends_in_s[rows, first], 0.0)
        wait_s = self._arrival_s - self.now_s
        arrived = wait_s <= ends_s
        ahead_s = np.minimum(wait_s, ends_s)
        idle = np.isinf(ahead_s)  # neither arrivals nor requests are left
        ahead_s[idle], arrived[idle] = 0.0, False
        stalled_s = np.minimum(self._stall_s, ahead_s[:, None])
        self._stall_s -= stalled_s
        self._tokens += np.where(self._count > 0, (ahead_s[:, None] - stalled_s) / step_s, 0.0)
        self.now_s += ahead_s
        ended = np.flatnonzero(~arrived & ~idle)
        if ended.size:
            self._end_oldest(ended, first[ended])
        return np.flatnonzero(arrived)

    def observe(self, systems: IntArray) -> Observation:
        """Return what is known about the requests that arrived in ``systems``."""
        models = len(self.system.models)
        counts = self._count[systems].reshape(systems.size, -1, models)
        least = counts.argmin(axis=1)
        predicted_s = self._predicted_s(systems).reshape(counts.shape)
        task = self._task[systems]
        return Observation(
            least=np.take_along_axis(counts, least[:, None], axis=1)[:, 0].astype(np.float64),
            mean=counts.mean(axis=1),
            predicted_s=np.take_along_axis(predicted_s, least[:, None], axis=1)[:, 0] * self._bias[systems],
            quality=self.system.quality[task],
            weight=self.system.weights[task],
            rate_per_s=1.0 / self._gap_s[systems],
            network_s=self._network_s[systems],
            task=task,
        )

    def serve(self, systems: IntArray, models: IntArray, tickets: IntArray) -> IntArray:
        """Send the request that arrived in each of ``systems`` to its model, and draw the next. Return the devices.

        It goes to the least loaded replica of the model.
        """
        counts = self._count[systems].reshape(systems.size, -1, len(self.system.models))
        device = np.take_along_axis(counts, models[:, None, None], axis=2)[:, :, 0].argmin(axis=1)
        replica = device * len(self.system.models) + models
        count = self._count[systems, replica]
        full = count >= RING
        if full.any():
            self.finished.add(tickets[full], np.zeros(int(full.sum())), np.full(int(full.sum()), np.inf))
        at, of, tickets, count, chosen = systems[~full], replica[~full], tickets[~full], count[~full], models[~full]
        task = self._task[at]
        most = self._most[of]
        # It begins when the request ends that had its place.
        before = self._end[at, of, (self._head[at, of] + count - most) % RING]
        begins = np.where(count >= most, np.maximum(before, self._tokens[at, of]), self._tokens[at, of])
        slot = (self._head[at, of] + count) % RING
        self._end[at, of, slot] = begins + self.system.output_tokens
        self._due_s[at, of, slot] = self.now_s[at] + self.system.limit_s[task] - self._network_s[at]
        self._value[at, of, slot] = self.system.quality[task, chosen] * self.system.weights[task]
        self._ticket[at, of, slot] = tickets
        self._next[at, of] = np.where(count == 0, self._end[at, of, slot], self._next[at, of])
        self._count[at, of] += 1
        self._stall_s[at, of] += self._prompt_s[of] * self.system.prompt_tokens[task]
        gaps_s = self.arrivals.gaps_s(systems, self.now_s)
        self._arrival_s[systems] = self.now_s[systems] + gaps_s
        known = np.isfinite(gaps_s)
        self._gap_s[systems[known]] += (gaps_s[known] - self._gap_s[systems[known]]) / RATE_MEMORY
        self._draw(systems)
        return np.asarray(device, np.int64)

    def _end_oldest(self, systems: IntArray, replicas: IntArray) -> None:
        head = self._head[systems, replicas]
        late = self.now_s[systems] > self._due_s[systems, replicas, head] * (1.0 + 1e-12)
        rewards = np.where(late, 0.0, self._value[systems, replicas, head])
        self.finished.add(self._ticket[systems, replicas, head], rewards, self.now_s[systems])
        self._tokens[systems, replicas] = self._end[systems, replicas, head]
        head = (head + 1) % RING
        self._head[systems, replicas] = head
        self._count[systems, replicas] -= 1
        left = self._count[systems, replicas] > 0
        self._next[systems, replicas] = np.where(left, self._end[systems, replicas, head], np.inf)
        self._stall_s[systems[~left], replicas[~left]] = 0.0

    def _draw(self, systems: IntArray) -> None:
        """Draw the next arrival's task and network, and the predictor's error where arrivals entered a new phase."""
        self._task[systems] = self._rng.integers(len(self.system.tasks), size=systems.size)
        low, high = self.system.network_s
        if high > 0.0:
            self._network_s[systems] = np.exp(self._rng.uniform(np.log(low), np.log(high), systems.size))
        new = systems[self.arrivals.entered[systems]]
        if new.size and self.system.error > 0.0:
            draws = self._rng.normal(0.0, self.system.error, (new.size, self._bias.shape[1]))
            self._bias[new] = np.exp(draws)

    def _alone_s(self, count: IntArray) -> FloatArray:
        """Return the step seconds of replicas with ``count`` requests, alone on their devices, ``[..., replicas]``."""
        return np.where(count > 0, self._base_s + self._seq_s * np.minimum(count, self._most), 0.0)

    def _step_s(self) -> FloatArray:
        alone = self._alone_s(self._count)
        step_s = alone + self.system.interference * self._beside(alone)
        step_s[self._count == 0] = 1.0  # not read
        return step_s

    def _beside(self, alone_s: FloatArray) -> FloatArray:
        """Return the summed step seconds of the other replicas on each replica's device, ``[..., replicas]``."""
        by_device = alone_s.reshape(*alone_s.shape[:-1], self.system.devices, -1)
        others: FloatArray = (by_device.sum(axis=-1, keepdims=True) - by_device).reshape(alone_s.shape)
        return others

    def _predicted_s(self, systems: IntArray) -> FloatArray:
        """Return the seconds until the request's last token if it went to each replica, ``[n, replicas]``.

        Later requests are assumed to be like the present ones: while it runs, each of the others ends and another takes
        its place, and the request waits for that one's prompt.
        """
        count, tokens = self._count[systems], self.system.output_tokens
        step_s = self._alone_s(count + 1) + self.system.interference * self._beside(self._alone_s(count))
        rounds = 1.0 + np.maximum(count + 1 - self._most, 0) / self._most
        prompt_s = self._prompt_s * self.system.prompt_tokens[self._task[systems], None]
        others_s = count * self._prompt_s * self.system.prompt_tokens.mean()
        predicted_s: FloatArray = step_s * tokens * rounds + self._stall_s[systems] + prompt_s + others_s
        return predicted_s
