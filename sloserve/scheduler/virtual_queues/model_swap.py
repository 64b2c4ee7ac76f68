"""Model warm start: what it costs to put one model in another's place on a device.

The weights of a model are on the device (active), in host memory (warm) or on disk (cold). A swap moves the leaving
model's weights to host memory and brings the coming model's from where they are. Profiles hold what was measured; for
the rest the bytes move at the link's rate, or at an assumed disk's, and ``assumed`` says so, to be printed.

Source: QLM, Sec. 5 (model warm start), which assumes one time for all swaps.
"""

from dataclasses import dataclass, replace
from typing import Final

from sloserve.core.errors import ConfigError
from sloserve.estimator.step_time.profile import Profile

DISK_BYTES_PER_S: Final = 2e9
"""Assumed where a profile has no ``reload_s``: one NVMe drive that reads sequentially, or a page cache half warm."""


@dataclass(frozen=True, slots=True)
class ModelSwap:
    """Seconds that swapping one model on one kind of device takes.

    Args:
        sleep_s: Seconds until the weights are in host memory.
        wake_s: Seconds until the weights are back on the device.
        reload_s: Seconds to load the weights from disk to the device.
        assumed: What was not measured, and what is taken instead; a sentence each.
    """

    weights_bytes: int
    sleep_s: float
    wake_s: float
    reload_s: float
    assumed: tuple[str, ...] = ()

    def seconds(self, leaving: "ModelSwap | None", *, warm: bool) -> float:
        """Return the seconds from the last token of the leaving model to this one's first step.

        A link moves both ways at once, but the new weights need the old ones' place, so that the two follow each other.

        Args:
            leaving: The model that leaves; ``None`` if the device is empty.
            warm: Whether the weights are in host memory.
        """
        return (leaving.sleep_s if leaving else 0.0) + (self.wake_s if warm else self.reload_s)

    def times(self, factor: float) -> "ModelSwap":
        """Return these costs for a machine ``factor`` times slower."""
        return replace(
            self, sleep_s=factor * self.sleep_s, wake_s=factor * self.wake_s, reload_s=factor * self.reload_s
        )


def model_swap(profile: Profile) -> ModelSwap:
    """Return what the profile's model costs to swap on the profile's hardware.

    Raises: ConfigError if neither times nor the size of the weights are known.
    """
    name, size = profile.name, profile.weights_bytes
    if size is None:
        raise ConfigError(
            f"profile {name}: weights_bytes is missing, so the cost of a model swap is unknown; add the size of the "
            f"weights in bytes"
        )
    link = profile.link_bandwidth_gb_per_s
    over_link_s = size / (link * 1e9)
    assumed = [
        f"{name}: {field} not measured, taken as {over_link_s:.2f} s ({size / 1e9:.1f} GB at {link:g} GB/s)"
        for field in ("sleep_s", "wake_s")
        if getattr(profile, field) is None
    ]
    wake_s = over_link_s if profile.wake_s is None else profile.wake_s
    reload_s = profile.reload_s or profile.start_s
    if reload_s is None:
        reload_s = size / DISK_BYTES_PER_S + wake_s
        assumed.append(
            f"{name}: reload_s not measured, taken as {reload_s:.2f} s (from disk at {DISK_BYTES_PER_S / 1e9:g} GB/s, "
            f"then as wake_s)"
        )
    return ModelSwap(
        weights_bytes=size,
        sleep_s=over_link_s if profile.sleep_s is None else profile.sleep_s,
        wake_s=wake_s,
        reload_s=reload_s,
        assumed=tuple(assumed),
    )
