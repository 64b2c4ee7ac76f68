"""Profiles like shipped ones, but for an engine of another speed."""

from pathlib import Path
from typing import Any

import yaml

from sloserve.estimator.step_time.profile import load_profile

PREFILL = ("token_ms", "attention_token2_ms", "prefix_attention_token2_ms")


def scaled_profile(name: str, factor: float, folder: Path, prefill: float | None = None) -> Path:
    """Writes the profile ``name`` with steps that take ``factor`` times as long, and returns its path.

    prefill: another factor, for what prompts cost.
    """
    plain: dict[str, Any] = load_profile(name).model_dump(mode="json")
    of_prefill = factor if prefill is None else prefill

    def scaled(values: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for key, value in values.items():
            if isinstance(value, dict):
                found[key] = scaled(value)
            else:
                times = of_prefill if key in PREFILL else factor if key.endswith("_ms") else None
                found[key] = value if times is None else value * times
        return found

    path = folder / f"{name}-{of_prefill:g}-{factor:g}.yaml"
    path.write_text(yaml.safe_dump(plain | {"name": path.stem, "latency": scaled(plain["latency"])}), encoding="utf-8")
    return path
