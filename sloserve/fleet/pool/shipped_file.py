"""A fleet's file as agents on other machines need it: with the profiles that it names, and nothing of its gateways."""

import json
from pathlib import Path
from typing import Any, Final

from sloserve.core.files.marked_yaml import load_yaml
from sloserve.estimator.step_time.profile import profile_names
from sloserve.fleet.fleet import Fleet

NAME: Final = "fleet.yaml"
_OF_SCALING: Final = ("least", "most", "bundle")
"""Keys of a kind of device that mean something only beside ``pool.ray``, which stays behind."""
_SECTIONS: Final = ("models", "pool", "switching", "settings", "planner")


def shipped(fleet: Fleet) -> dict[str, str]:
    """Return texts by file name, to be written into one folder; :data:`NAME` is the fleet's own file."""
    root: dict[str, Any] = load_yaml(Path(fleet.source)).plain()
    kept: dict[str, Any] = {name: root[name] for name in _SECTIONS if name in root}
    files: dict[str, str] = {}
    kept["models"] = {}
    for name, model in fleet.models.items():
        profiles = {device: _profile(source, files) for device, source in model.start.profiles.items()}
        kept["models"][name] = {**root["models"][name], "profile": profiles}
        kept["models"][name].pop("active_on", None)  # instances of hosts that stay behind
    kept["gateway"] = {"max_requests": fleet.gateway.max_requests}
    kinds = root["pool"]["devices"].items()
    devices = {kind: {key: one[key] for key in one if key not in _OF_SCALING} for kind, one in kinds}
    kept["pool"] = {"devices": devices}
    return {NAME: json.dumps(kept, indent=1), **files}  # YAML, too


def _profile(source: str, files: dict[str, str]) -> str:
    if source in profile_names():
        return source
    text = Path(source).read_text(encoding="utf-8-sig")
    name = next((one for one, other in files.items() if other == text), f"shipped-profile-{len(files)}.yaml")
    files[name] = text
    return name
