"""Admissions of a simulation by name: ``none``, ours, and vLLM's own caps as their rival.

Examples are ``cap:max_waiting=64``, ``predict:min_chance=0.5`` and ``vllm:max_num_queued_tokens=16000``; options are
written as a policy's. Every policy runs under each of them; see :mod:`sloserve.sim.run_name`.
"""

from collections.abc import Sequence
from dataclasses import replace

from sloserve.core import numbers
from sloserve.core.errors import ConfigError
from sloserve.core.files.model import check_model
from sloserve.engine.virtual.engine_settings import EngineSettings
from sloserve.scheduler.admission.admission import Admission
from sloserve.scheduler.registry import parse_policy
from sloserve.scheduler.settings import AdmissionSettings, PluginSettings

NONE, VLLM = "none", "vllm"
MODES = (NONE, "cap", "predict", VLLM)
VLLM_CAPS = ("max_num_queued_reqs", "max_num_queued_tokens")


def parse_admission(text: str) -> tuple[AdmissionSettings, dict[str, int]]:
    """Return our settings and vLLM's caps that ``text`` asks for.

    Raises: ConfigError for an unknown mode or option, or a value out of range.
    """
    mode, options = parse_policy(text)
    if mode not in MODES:
        raise ConfigError(f"admission {text!r}: {mode!r} is not one of {', '.join(MODES)}")
    values = {name: _number(text, name, value) for name, value in options.items()}
    if mode == VLLM:
        if not values or not all(name in VLLM_CAPS and isinstance(value, int) for name, value in values.items()):
            raise ConfigError(f"admission {text!r}: give whole numbers for {' or '.join(VLLM_CAPS)}")
        return AdmissionSettings(), {name: int(value) for name, value in values.items()}
    settings, problems = check_model(AdmissionSettings, {"mode": mode, **values})
    if settings is None:
        raise ConfigError("; ".join(f"admission {text!r}: {p.path[-1]}: {p.text}" for p in problems))
    return settings, {}


def limit_queue(settings: EngineSettings, admission: str) -> EngineSettings:
    """Return the engine with vLLM's caps that ``admission`` asks for."""
    caps = parse_admission(admission)[1]
    reqs, tokens = (caps.get(name) for name in VLLM_CAPS)
    return replace(settings, max_num_queued_reqs=reqs, max_num_queued_tokens=tokens)


def make_front(admission: str, class_names: Sequence[str], settings: PluginSettings | None = None) -> Admission:
    """Return a new admission, by tenant where they have shares. Raises: ConfigError.

    Args:
        admission: Text of the admission.
        class_names: Names of the service classes.
        settings: Settings of the engine; ``None`` for stock vLLM, which keeps no promise.
    """
    shares = None if settings is None else settings.tenant_shares
    orders = settings is not None and settings.orders_requests
    return parse_admission(admission)[0].make(class_names, lambda place: True, shares=shares, orders=orders)


def _number(text: str, name: str, value: str) -> float | int:
    try:
        return numbers.whole(value) if numbers.is_whole(value) else numbers.number(value)
    except ValueError as error:
        raise ConfigError(f"admission {text!r}: {name}: {error}") from None
