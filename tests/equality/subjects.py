"""What is put to the test: every policy, each with every means it has."""

from dataclasses import dataclass, field, replace
from typing import Any

from sloserve.scheduler.registry import policy_names
from tests.equality.workloads import CLASSES


@dataclass(frozen=True)
class Subject:
    """A scheduler's settings. plan_every: steps that one plan serves, as if planning were so costly.

    pauses, preempts, errs, limits: what the run must show, or must not; None: as it comes. token_s: what a token makes
    a step longer. waits: whether it leaves those that are to be aborted while they wait waiting at all. One that limits
    is sent requests with no targets but their classes'.
    """

    name: str
    section: dict[str, Any] = field(default_factory=dict)
    plan_every: int = 1
    pauses: bool | None = False
    preempts: bool = False
    errs: bool = False
    limits: bool = False
    token_s: float = 0.0
    waits: bool = True

    def __str__(self) -> str:
        return self.name

    def swapping(self) -> "Subject":
        """The same, where every preempted request keeps its KV in host memory."""
        return replace(self, section={**self.section, "swapping": "always"})


def _chaos(name: str, plan_every: int = 1, **options: float) -> Subject:
    quiet = {"preempt": 0.0, "pause": 0.0, "limit": 0.0, "illegal": 0.0}
    chances = {**quiet, **options}
    section = {"policy": "chaos", "policy_options": chances, "seed": 7}
    return Subject(
        f"chaos-{name}",
        section,
        plan_every,
        pauses=chances["pause"] > 0,
        preempts=chances["preempt"] > 0,
        errs=chances["illegal"] > 0,
    )


_RESTLESS = "watermark=0:lead_s=0.01:urgent_s=1000:max_preemptions=9:preemption_cap=9:headroom=0"
"""Andes on the time scale of these replies, which end within a second: anybody ahead gives way."""

_PACED = {
    "classes": {name: {"rank": i, "tds": 5.5} for i, name in enumerate(CLASSES)},
    "default_class": "interactive",
}
"""Readers, whose pace steps keep that compute few prompt tokens beside the decodes, at 10 ms a token."""

_CHOSEN = (
    Subject("fcfs"),
    Subject("fcfs-step-budget", {"policy": "fcfs:step_budget=true", **_PACED}, token_s=0.01, limits=True),
    Subject("edf-step-budget", {"policy": "edf:step_budget=true", **_PACED}, token_s=0.01, limits=True, waits=False),
    Subject("priority", {"policy": "priority"}, preempts=True),
    Subject("priority-order-only", {"policy": "priority:preempt=false"}),
    Subject("edf", {"policy": "edf"}, preempts=True),
    Subject("edf-order-only", {"policy": "edf:preempt=false"}),
    Subject("sjf", {"policy": "sjf"}),
    Subject("sjf-preempt", {"policy": "sjf:preempt=true"}),
    Subject("rr", {"policy": "rr:interval_steps=5"}, preempts=True),
    Subject("sa", {"policy": "sa"}, waits=False),
    Subject("andes", {"policy": "andes"}, pauses=None),
    Subject("econo", {"policy": "econo:reserve=0:sigmas=0"}, pauses=None),
    Subject("auto", {"policy": "auto:hysteresis=0:sigmas=0:reserve=0"}, preempts=None, waits=False),
    Subject("qlm", {"policy": "qlm:preempt_margin_s=0:delta=0.5"}, preempts=True),
    Subject("econo-blind", {"policy": "econo-parts:foresee=false:reserve=0:pause=true"}, pauses=None),
    Subject("andes-restless", {"policy": f"andes-parts:{_RESTLESS}"}, preempts=True, pauses=None),
    Subject(
        "andes-as-published",
        {"policy": f"andes-parts:{_RESTLESS}:victims=gain"},
        preempts=True,
        pauses=None,
    ),
    Subject("sa-batches", {"policy": "sa-batches"}),
    Subject("econo-paper", {"policy": "econo-paper:sync_tokens=8:reserve=0.2"}, pauses=None),
    Subject("econo-paper-future", {"policy": "econo-paper:parts=d:pipeline=future:reserve=0"}, pauses=None),
    Subject("orca", {"policy": "orca:batch=3"}),
    Subject("srtf", {"policy": "srtf:max_preemptions=9"}, preempts=True, waits=False),
    Subject("sarathi", {"policy": "sarathi:tokens=24"}),
    Subject("fastserve", {"policy": "fastserve:quantum_tokens=2:batch=3"}, pauses=None, preempts=True),
    Subject("multires", {"policy": "multires"}),
    Subject("sync-coupled", {"policy": "sync-coupled"}, waits=False),
    _chaos("preempt", preempt=0.1),
    _chaos("pause", pause=0.4),
    _chaos("nearly-all", preempt=0.5, pause=0.9),
    _chaos("limit", limit=0.5, illegal=0.2),
    _chaos("all", preempt=0.1, pause=0.3, limit=0.2, illegal=0.05),
    _chaos("all-reused-plans", plan_every=3, preempt=0.3, pause=0.3, limit=0.2, illegal=0.2),
)

_NAMED = {str(one.section["policy"]).partition(":")[0] for one in _CHOSEN if one.section} | {"fcfs"}
SUBJECTS = (
    *_CHOSEN,
    # A policy that nobody has chosen options for yet is put to the test as it is.
    *(Subject(name, {"policy": name}, pauses=None) for name in policy_names() if name not in _NAMED),
)

_MEANS = ("fcfs", "edf", "chaos-nearly-all", "chaos-all", "chaos-all-reused-plans")
MEANS = tuple(s for s in SUBJECTS if s.name in _MEANS)
"""Stock's order through our hooks, and fresh and reused plans that preempt, pause, limit, and are illegal."""

_LORA = ("fcfs", "edf", "chaos-preempt", "chaos-pause", "chaos-all", "chaos-all-reused-plans")
LORA_SUBJECTS = tuple(s for s in SUBJECTS if s.name in _LORA)
"""LoRA is slow on a CPU; these bring every means to it."""
