"""A learned policy: a small net that values each model for a request, evaluated by numpy alone.

The file is safetensors: a header in JSON and plain numbers, nothing of it is run. Weights are kept in half precision;
what is evaluated before a policy is shipped is what the file says.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sloserve.core.arrays import FloatArray
from sloserve.core.errors import ConfigError

MAX_FILE_BYTES = 16 * 2**20
_LENGTH_BYTES = 8
_LAYERS = 3

Layer = tuple[NDArray[np.float32], NDArray[np.float32]]


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """Layers of ``(weights [in, out], biases [out])`` with ReLU between them.

    Args:
        about: What training says about it, as text; ``schema`` and ``models`` are always there.
    """

    layers: tuple[Layer, ...]
    about: Mapping[str, str]

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models that it chooses among, smallest first."""
        return tuple(self.about["models"].split(","))

    def values(self, features: FloatArray) -> FloatArray:
        """Return the value of each model for each request, ``[n, models]``; only their order means anything."""
        x = features.astype(np.float32)
        for weights, biases in self.layers[:-1]:
            x = np.maximum(x @ weights + biases, 0.0)
        weights, biases = self.layers[-1]
        return np.asarray(x @ weights + biases, np.float64)

    @property
    def is_loadable(self) -> bool:
        """Whether all numbers are finite in half precision; a file with others is refused when it is loaded."""
        with np.errstate(over="ignore"):
            return all(bool(np.isfinite(one.astype("<f2")).all()) for layer in self.layers for one in layer)

    def save(self, path: Path) -> None:
        """Write the policy to ``path`` in half precision, replacing what is there."""
        header: dict[str, object] = {"__metadata__": dict(self.about)}
        blocks, at = [], 0
        for i, layer in enumerate(self.layers):
            for name, numbers in zip(("weight", "bias"), layer, strict=True):
                block = numbers.astype("<f2").tobytes()
                header[f"{i}.{name}"] = {
                    "dtype": "F16",
                    "shape": list(numbers.shape),
                    "data_offsets": [at, at + len(block)],
                }
                blocks.append(block)
                at += len(block)
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _LENGTH_BYTES)
        path.write_bytes(len(text).to_bytes(_LENGTH_BYTES, "little") + text + b"".join(blocks))


def load_network(path: Path, schema: str, models: Sequence[str] | None = None) -> Network:
    """Return the policy in the file at ``path``.

    Args:
        path: Path of the policy file.
        schema: Schema, as text, of the features that would be computed.
        models: Names that it must choose among; ``None`` for any.

    Raises:
        ConfigError: There is no such file, it is malformed, or it was trained for other features or models.
    """
    try:
        if not path.is_file():  # a device or a pipe has no end
            raise ConfigError(f"{path}: no such file; a router's policy is one that `sloserve train-router` wrote")
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        if len(raw) > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: {path.stat().st_size} bytes; a router's policy has at most {MAX_FILE_BYTES}")
        network = _read(raw)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the router's policy: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{path}: is not a router's policy: {error}; make one with `sloserve train-router`") from None
    if network.about["schema"] != schema:
        raise ConfigError(
            f"{path}: trained on features {network.about['schema']}, here they are {schema}; train it again with "
            "`sloserve train-router`, or use the policy greedy"
        )
    if models is not None and network.models != tuple(models):
        raise ConfigError(
            f"{path}: trained for the models {', '.join(network.models)}, here they are {', '.join(models)}; "
            "train it again with `sloserve train-router`, or use the policy greedy"
        )
    inputs, outputs = schema.count(",") + 1, len(network.models)
    if network.layers[0][0].shape[0] != inputs or network.layers[-1][0].shape[1] != outputs:
        raise ConfigError(f"{path}: its net does not have {inputs} inputs and {outputs} outputs")
    return network


def _read(raw: bytes) -> Network:
    length = int.from_bytes(raw[:_LENGTH_BYTES], "little")
    header = json.loads(raw[_LENGTH_BYTES : _LENGTH_BYTES + length])
    numbers = raw[_LENGTH_BYTES + length :]
    about = {str(key): str(value) for key, value in header["__metadata__"].items()}
    if "schema" not in about or "models" not in about:
        raise ValueError("__metadata__ has no schema and models")
    layers: list[Layer] = []
    for i in range(_LAYERS):
        weights, biases = (_tensor(header[f"{i}.{name}"], numbers) for name in ("weight", "bias"))
        if weights.ndim != 2 or biases.shape != weights.shape[1:]:
            raise ValueError(f"layer {i}: weights {weights.shape} and biases {biases.shape} do not fit")
        if layers and layers[-1][1].size != weights.shape[0]:
            raise ValueError(f"layer {i}: {weights.shape[0]} inputs, the layer before has {layers[-1][1].size} outputs")
        layers.append((weights, biases))
    return Network(tuple(layers), about)


def _tensor(entry: Mapping[str, object], numbers: bytes) -> NDArray[np.float32]:
    shape, offsets = entry["shape"], entry["data_offsets"]
    if entry["dtype"] != "F16" or not isinstance(shape, list) or not isinstance(offsets, list):
        raise ValueError(f"tensor {entry!r}: F16 with a shape and offsets is needed")
    if not all(isinstance(size, int) and size > 0 for size in shape):
        raise ValueError(f"shape {shape!r}: whole numbers from 1 are needed")
    found = np.frombuffer(numbers[offsets[0] : offsets[1]], "<f2").astype(np.float32).reshape(shape)
    if not np.isfinite(found).all():
        raise ValueError("a number is not finite")
    return found
