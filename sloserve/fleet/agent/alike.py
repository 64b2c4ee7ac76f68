"""Comparison of two models: whether all but the weights' values is the same, so that one can replace the other."""

import functools
import hashlib
import json
import struct
from pathlib import Path
from typing import Any, Final

from sloserve.fleet.agent.engine_spec import EngineModel

_IGNORED: Final = frozenset({"_name_or_path", "transformers_version", "model_name"})
"""Keys of config.json that are not compared: they say where the weights come from."""
_FILES: Final = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
)
_MOST_HEADER_BYTES: Final = 100_000_000
"""Most bytes of a header in the safetensors format."""


def are_alike(one: EngineModel, other: EngineModel) -> bool:
    """Return whether an engine of one model can continue as an engine of the other.

    It can if flags, configuration, dtypes, quantisation, tokenizer, template, generation config, and the name, shape
    and dtype of each tensor are equal. Only folders can be compared.
    """
    if one.adapter_of or other.adapter_of or one.environment != other.environment:
        return False
    if _contents(one.flags) != _contents(other.flags):
        return False
    build = fingerprint(Path(one.model))
    return build is not None and build == fingerprint(Path(other.model))


def _contents(flags: tuple[str, ...]) -> list[str | bytes]:
    """Return the flags, with the contents of files in place of their names: each model has its own settings file."""
    found: list[str | bytes] = []
    for flag in flags:
        try:
            found.append(Path(flag).read_bytes() if flag.startswith("/") and Path(flag).is_file() else flag)
        except (OSError, ValueError):
            found.append(flag)
    return found


def fingerprint(folder: Path) -> str | None:
    """Return a digest of a model without the values of its weights, which are not read.

    The digest is ``None`` if the model's config or its safetensors cannot be read.
    """
    try:
        stamps = [(path.name, (found := path.stat()).st_size, found.st_mtime_ns) for path in sorted(folder.iterdir())]
    except OSError:
        return None
    return _fingerprint(folder, tuple(stamps))


@functools.lru_cache(64)
def _fingerprint(folder: Path, stamps: tuple[tuple[str, int, int], ...]) -> str | None:
    """Return the digest of :func:`fingerprint`, cached.

    Args:
        folder: Folder of the model.
        stamps: Names, sizes and times of its files, so that the digest is computed again when one of them changes.
    """
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        parts = [json.dumps({k: v for k, v in config.items() if k not in _IGNORED}, sort_keys=True).encode()]
        for name in _FILES:
            path = folder / name
            parts.append(name.encode() + (path.read_bytes() if path.exists() else b"-"))
        tensors: dict[str, Any] = {}
        for path in sorted(folder.glob("*.safetensors")):
            tensors |= _tensors(path)
    except (OSError, ValueError, AttributeError, struct.error):
        return None
    if not tensors:
        return None
    parts.append(json.dumps(tensors, sort_keys=True).encode())
    return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def _tensors(path: Path) -> dict[str, Any]:
    """Read dtype and shape by name, from the header. Raises: ValueError if the file is shorter than the header says."""
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        if size > _MOST_HEADER_BYTES:
            raise ValueError(f"{path}: a header of {size} bytes")
        header: dict[str, Any] = json.loads(file.read(size))
    header.pop("__metadata__", None)
    ends = max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
    if path.stat().st_size < 8 + size + ends:
        raise ValueError(f"{path}: cut short")
    return {name: [tensor["dtype"], tensor["shape"]] for name, tensor in header.items()}
