"""Whether this machine has an NVIDIA GPU, without a library that would take hold of it."""

from pathlib import Path

ON_A_GPU = Path("/dev/nvidiactl").exists()
