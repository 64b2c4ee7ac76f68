"""How long a reply takes on an instance, as far as its profile and its batch say."""

from sloserve.estimator.step_time.latency import StepLoad
from sloserve.sim.fleet.contract import InstanceView


def reply_s(instance: InstanceView, model: str, prompt_tokens: float, tokens: float, others: int = 31) -> float:
    """Seconds from a request's first step to its last token, beside ``others`` that decode as it does."""
    profile = instance.profile(model)
    prefill_s = profile.step_s(StepLoad.of([(max(int(prompt_tokens), 1), 0)], []))
    context = int(prompt_tokens + tokens / 2.0)
    return prefill_s + tokens * profile.step_s(
        StepLoad(decode_seqs=others + 1, decode_context_tokens=(others + 1) * context)
    )
