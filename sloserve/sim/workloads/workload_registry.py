"""Workloads by name: requests with arrivals, lengths and SLOs, all decided by one seed.

A workload is a source of traces and an SLO assignment. :func:`workload` finds a generated one by name,
:func:`trace_workload` makes one of a recorded trace; both have :meth:`Workload.requests`. The class of service is
drawn from a stream of its own, so another SLO file, rate or policy leaves the arrivals and lengths of a seed as they
are.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from sloserve.cli.flag_errors import about_flag
from sloserve.core.errors import ConfigError
from sloserve.core.nearest import did_you_mean
from sloserve.core.request import WorkloadRequest
from sloserve.core.slo import SLOClass, Targets
from sloserve.sim.workloads.arrival_processes import ArrivalProcess, Bursts, Gamma, OnOff, Poisson, generate
from sloserve.sim.workloads.drawn_tenants import DrawnTenants, parse_parts
from sloserve.sim.workloads.length_models import (
    IndependentLengths,
    TokenLengths,
    alpaca,
    bookcorpus,
    multiround,
    reasoning,
    sharegpt,
)
from sloserve.sim.workloads.named_slos import NAMED_SLOS
from sloserve.sim.workloads.readers import read_trace
from sloserve.sim.workloads.readers.token_counter import token_counter
from sloserve.sim.workloads.seeding import stream
from sloserve.sim.workloads.slo_assignment import DEFAULT_ASSIGNMENT, ClassRule, SLOAssignment
from sloserve.sim.workloads.trace import Trace, make_trace, merge
from sloserve.sim.workloads.traffic_options import TrafficOptions
from sloserve.sim.workloads.window import Window

TraceSource = Callable[[int, int], Trace]
"""A function from (number of requests, seed) to a trace, which is shorter where a recorded trace has no more."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What arrives and what it asks for.

    Args:
        name: Name of the workload.
        description: Text for the list of workloads.
        source: Function that returns the trace of a number of requests and a seed.
        rate_per_s: Arrivals per second when no rate is asked for; ``None`` to keep the recorded rate.
        slos: Assignment of SLOs to the requests.
        trace: The trace that is replayed, or ``None`` where the workload is generated.
        seed_offset: Number that is added to every seed.
        tenants: Tenants to draw in place of the trace's own; ``None`` to keep these.
    """

    name: str
    description: str
    source: TraceSource
    rate_per_s: float | None
    slos: SLOAssignment
    trace: Trace | None = None
    seed_offset: int = 0
    tenants: DrawnTenants | None = None

    def within(self, window: Window) -> "Workload":
        """Return the part of the workload in ``window``: requests of a recorded trace, or seeds of a generator.

        Raises: ConfigError where the part holds no request.
        """
        trace = None if self.trace is None else self.trace.part(window.start, window.end)
        source = self.source if trace is None else lambda n, seed: trace.window(seed, n)
        return replace(self, source=source, trace=trace, seed_offset=self.seed_offset + window.seed_offset)

    def requests(
        self,
        n: int,
        seed: int,
        rate_per_s: float | None = None,
        *,
        rate_scale: float = 1.0,
        slos: SLOAssignment | None = None,
    ) -> list[WorkloadRequest]:
        """Return ``n`` requests of ``seed``, at ``rate_per_s`` or else ``rate_scale`` times the workload's own rate.

        The rate of generated requests holds on average over seeds, the rate of a replayed window exactly. An assignment
        ``slos`` replaces the workload's own.

        Raises: ConfigError for a count below 1, a rate that is not positive, or a task without a class.
        """
        seed += self.seed_offset
        trace = self.source(n, seed)
        if self.rate_per_s is not None:
            trace = trace.faster((self.rate_per_s if rate_per_s is None else rate_per_s) * rate_scale)
        else:
            trace = (trace if rate_per_s is None else trace.at_rate(rate_per_s)).faster(rate_scale)
        if self.tenants is not None:
            trace = self.tenants.drawn(trace, seed)
        return to_requests(trace, slos or self.slos, seed)


def to_requests(trace: Trace, slos: SLOAssignment, seed: int) -> list[WorkloadRequest]:
    """Return the requests of ``trace`` with the SLOs that ``slos`` gives them under ``seed``.

    The priority of a request is the rank of its class.

    Raises: ConfigError for a task without a class.
    """
    assigned = slos.assign(trace, stream(seed, "slo"))
    prefixes = trace.prefix_ids or [()] * len(trace)
    tenants = trace.tenant or [""] * len(trace)
    rows = zip(
        trace.arrival_s.tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), trace.task, strict=True
    )
    return [
        WorkloadRequest(
            request_id=f"r{i}",
            arrival_s=arrival_s,
            prompt_tokens=prompt,
            output_tokens=output,
            slo=slo,
            task=task,
            priority=slo.slo_class.rank,
            prefix_ids=prefix,
            prefix_block_tokens=trace.block_tokens,
            tenant=tenant,
        )
        for i, ((arrival_s, prompt, output, task), slo, prefix, tenant) in enumerate(
            zip(rows, assigned, prefixes, tenants, strict=True)
        )
    ]


def trace_workload(trace: Trace, slos: SLOAssignment = DEFAULT_ASSIGNMENT) -> Workload:
    """Return a workload that replays windows of ``trace``; by default half is interactive and half is batch."""
    # The file's name without its folder: what is reported must not depend on where the trace lies.
    description = f"{len(trace)} requests of {Path(trace.source).name}"
    if trace.reading:
        description += f" ({trace.summary})"
    return Workload(trace.name, description, lambda n, seed: trace.window(seed, n), None, slos, trace)


CHAT_SHARE = 0.8
BATCH_BURST = 20
"""The size of a burst in chat-batch-mix: one request in five is a batch job, and batch jobs come twenty at once."""

CHAT_BATCH = SLOAssignment(
    "workload chat-batch-mix",
    (
        ClassRule(SLOClass("interactive", 0, Targets(ttft_s=0.5, tpot_s=0.05))),
        ClassRule(SLOClass("batch", 1, Targets(e2e_s=120.0), aged_after_s=600.0)),
    ),
    by_task={"chat": "interactive", "batch": "batch"},
    default="interactive",
)


def _chat_batch_mix(n: int, seed: int) -> Trace:
    name = "chat-batch-mix"
    parts = []
    for task, arrivals, lengths, share in (
        ("chat", Poisson(), sharegpt(), CHAT_SHARE),
        ("batch", Bursts(BATCH_BURST), bookcorpus(), 1.0 - CHAT_SHARE),
    ):
        arrival_s = arrivals.draw(max(n, 1), stream(seed, f"{name}/{task}/arrivals")) / share
        prompt, output = lengths.draw(max(n, 1), stream(seed, f"{name}/{task}/lengths"))
        parts.append((arrival_s, make_trace(name, task, arrival_s, prompt, output, [task] * arrival_s.size)))
    return merge(name, f"generator {name}", parts).head(n)


def _generated(
    name: str,
    description: str,
    arrivals: ArrivalProcess,
    lengths: Callable[[], IndependentLengths],
    rate_per_s: float,
    slos: SLOAssignment = DEFAULT_ASSIGNMENT,
) -> Workload:
    def source(n: int, seed: int) -> Trace:
        drawn: TokenLengths = lengths()
        return generate(name, arrivals, drawn, n, seed, 1.0)

    return Workload(name, description, source, rate_per_s, slos)


WORKLOADS: dict[str, Workload] = {
    w.name: w
    for w in (
        _generated("sharegpt-poisson", "chats, Poisson", Poisson(), sharegpt, 28.0),
        _generated("sharegpt-gamma3", "chats in bursts: Gamma gaps, CV 3", Gamma(3.0), sharegpt, 28.0),
        _generated(
            "sharegpt-bursts",
            "chats, half of them fifty at once",
            OnOff(burst_size=50, burst_share=0.5),
            sharegpt,
            28.0,
        ),
        _generated("alpaca-poisson", "short instructions, Poisson", Poisson(), alpaca, 36.0),
        _generated("bookcorpus-poisson", "2048-token chunks of books, Poisson", Poisson(), bookcorpus, 1.2),
        _generated(
            "reasoning-poisson", "replies of 1,500 tokens and a tail to 30,000, Poisson", Poisson(), reasoning, 4.0
        ),
        Workload(
            "chat-batch-mix",
            "chats with TTFT 500 ms and TPOT 50 ms; every fifth request a batch job with e2e 120 s, twenty at once",
            _chat_batch_mix,
            4.0,
            CHAT_BATCH,
        ),
        _generated(
            "reading-speed",
            "chats at people's reading speeds, TTFT 1 s, Poisson",
            Poisson(),
            sharegpt,
            3.3,
            NAMED_SLOS["reading"],
        ),
        _generated(
            "reading-speed-gamma3",
            "chats at people's reading speeds, TTFT 1 s, Gamma gaps of CV 3",
            Gamma(3.0),
            sharegpt,
            3.3,
            NAMED_SLOS["reading"],
        ),
        _generated(
            "voice",
            "spoken chats at people's speaking speeds, TTFT 1 s, Poisson",
            Poisson(),
            sharegpt,
            3.3,
            NAMED_SLOS["voice"],
        ),
        _generated(
            "voice-gamma3",
            "spoken chats at people's speaking speeds, TTFT 1 s, Gamma gaps of CV 3",
            Gamma(3.0),
            sharegpt,
            3.3,
            NAMED_SLOS["voice"],
        ),
        _generated(
            "multiround",
            "chats that carry their earlier rounds, at people's reading speeds, TTFT 1 s, Poisson",
            Poisson(),
            multiround,
            3.3,
            NAMED_SLOS["reading"],
        ),
        _generated(
            "multiround-gamma3",
            "chats that carry their earlier rounds, at people's reading speeds, TTFT 1 s, Gamma gaps of CV 3",
            Gamma(3.0),
            multiround,
            3.3,
            NAMED_SLOS["reading"],
        ),
    )
}
"""The generated workloads.

Their rates are the rates of EconoServe's Table 2 (OPT-13B on an A100) and of Andes's Sec. 6.3 (OPT-66B on four):
starting points, to be set to the engine at hand.
"""


def workload(name: str) -> Workload:
    """Return the generated workload ``name``.

    Raises: ConfigError for an unknown name.
    """
    if name not in WORKLOADS:
        raise ConfigError(f"unknown workload {name!r}; known: {', '.join(WORKLOADS)}{did_you_mean(name, WORKLOADS)}")
    return WORKLOADS[name]


def asked_workload(options: TrafficOptions) -> Workload:
    """Return the workload that the options name, generated or a trace, with the tenants that they name.

    Raises: ConfigError unless they name exactly one, and the errors of :func:`workload` and of the readers.
    """
    found = _named_workload(options)
    if options.tenants is None:
        return found
    parts = parse_parts("--tenants", options.tenants)
    return replace(found, tenants=DrawnTenants(tuple(parts), tuple(parts.values())))


def _named_workload(options: TrafficOptions) -> Workload:
    if (options.workload is None) == (options.trace is None):
        raise ConfigError("give one of --workload NAME (sloserve workloads lists them) and --trace FILE")
    if options.trace is None:
        if options.tokenizer is not None:
            raise ConfigError("--tokenizer counts the texts of a --trace; --workload has none")
        if options.trace_format is not None or options.trace_block_tokens is not None:
            raise ConfigError("--trace-format and --trace-block-tokens say how a --trace is read; --workload has none")
        with about_flag("--workload"):
            return workload(str(options.workload))
    has_rate = options.rps is not None or getattr(options, "load", None) is not None
    count = token_counter(options.tokenizer)
    return trace_workload(
        read_trace(
            options.trace,
            options.trace_format,
            count=count,
            draw_arrivals=has_rate,
            prefix_block_tokens=options.trace_block_tokens,
        )
    )
