#!/usr/bin/env bash
# Policy edf with swap space: preempted requests keep their KV in 64 GiB of host memory, for all ranks. See docs/swap.md.
# Usage: configs/serve-swap.sh MODEL [any flag of vllm serve]; SWAP_SPACE_GIB=128 before it for another size
set -euo pipefail
exec sloserve serve "$@" --policy edf --swap-space-gib "${SWAP_SPACE_GIB:-64}"
