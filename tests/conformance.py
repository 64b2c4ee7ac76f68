"""Every registered policy is put to the same tests: this says which forms of it, beside its defaults.

Tests take their policies from the registry, through here. A new policy is tested with its defaults at once; it needs an
entry only where options bring out more of it. What has no golden log fails until ``pytest tests/golden
--update-golden`` has written one, and what has no page in ``docs/policies`` fails until there is one.
"""

from dataclasses import dataclass

from sloserve.scheduler.registry import policy_names


@dataclass(frozen=True)
class Forms:
    """How one policy is tested, each an option string that follows its name.

    Args:
        golden: for the log of its decisions.
        conserves: for "nothing is lost, whatever it plans", beside the defaults.
    """

    golden: str = ""
    conserves: tuple[str, ...] = ()


FORMS: dict[str, Forms] = {
    # A small margin and short turns, so that the logs show preemptions: deadlines lie seconds apart, replies are short.
    "fcfs": Forms(conserves=(":step_budget=true",)),
    "edf": Forms(conserves=(":step_budget=true",), golden=":preempt_margin_s=1"),
    "sjf": Forms(golden=":preempt=true:length=oracle", conserves=(":preempt=true:length=oracle", ":length=gaussian")),
    "rr": Forms(golden=":interval_steps=20", conserves=(":interval_steps=5",)),
    "sa": Forms(golden=":length=oracle"),
    "sa-batches": Forms(golden=":length=oracle", conserves=(":length=oracle",)),
    "andes": Forms(golden=":lead_s=1", conserves=(":lead_s=0.01:max_preemptions=9:headroom=0",)),
    "andes-parts": Forms(
        golden=":lead_s=2:watermark=0.5",
        conserves=(
            ":watermark=0:lead_s=0.01:urgent_s=1000:max_preemptions=9:headroom=0",
            ":victims=gain:objective=min:alpha=0.9:length=oracle:length_error=0.3:urgent_s=1000",
            ":objective=perfect:pause=false:watermark=0",
        ),
    ),
    "andes-paper": Forms(
        golden=":watermark=0.5", conserves=(":watermark=0:preemption_cap=9", ":watermark=0:solver=dp:length=oracle")
    ),
    "econo": Forms(
        golden=":length=oracle:length_error=0.5",
        conserves=(
            ":late_last=true:sigmas=0:reserve=0:length=oracle",
            ":sigmas=0:length=oracle:length_error=0.5",
        ),
    ),
    "qlm": Forms(
        golden=":preempt_margin_s=1",
        conserves=(":inside=edf:delta=0.1:preempt_margin_s=0:max_preemptions=9:replan_s=0", ":step_budget=true"),
    ),
    "auto": Forms(
        golden=":hysteresis=0.01",
        conserves=(":hysteresis=0:max_preemptions=9:sigmas=0:reserve=0", ":step_budget=false:preempt=false"),
    ),
    "econo-parts": Forms(
        golden=":order=fcfs:length=oracle:length_error=0.5",
        conserves=(":order=fcfs:length=oracle:length_error=0.5", ":foresee=false:pause=true"),
    ),
    "econo-paper": Forms(
        golden=":length=oracle:length_error=0.5:sync_tokens=16:reserve=0.1",
        conserves=(
            ":length=oracle:length_error=1:sync_tokens=8",
            ":parts=sd:pipeline=future:length=oracle:length_error=0.5:reserve=0.3:remedy=preempt:tfs_tokens=20",
        ),
    ),
    "orca": Forms(conserves=(":batch=0",)),
    "srtf": Forms(golden=":length=oracle", conserves=(":max_preemptions=9", ":length=oracle:length_error=0.3")),
    "sarathi": Forms(golden=":tokens=32", conserves=(":tokens=20",)),
    "fastserve": Forms(
        golden=":quantum_tokens=8:batch=3",
        conserves=(":levels=3:quantum_tokens=4:promote_s=0.2:batch=2", ":batch=0:quantum_tokens=1"),
    ),
    "plas": Forms(
        golden=":quantum_s=0.5:starved_ratio=2",
        conserves=(":levels=3:quantum_s=0.1:starved_ratio=1:max_preemptions=9",),
    ),
    "thunder-agent": Forms(
        golden=":interval_s=0.5", conserves=(":interval_s=0:threshold=0.3", ":interval_s=0.2:resume_after_s=0.5")
    ),
    "continuum": Forms(conserves=(":gives_way=false",)),
    "multires": Forms(
        golden=":length=oracle:padding=0", conserves=(":window=3", ":length=oracle:length_error=0.5:padding=0")
    ),
    "sync-coupled": Forms(golden=":length=oracle:padding=0", conserves=(":length=oracle:padding=0:sync_tokens=1",)),
}


def golden_forms() -> list[tuple[str, str]]:
    """Name of the log, and the policy with its options, of every registered policy."""
    return [(name, name + FORMS.get(name, Forms()).golden) for name in policy_names()]


def conserving_forms() -> list[str]:
    """Every registered policy with its defaults, and its other forms."""
    return [name + options for name in policy_names() for options in ("", *FORMS.get(name, Forms()).conserves)]
