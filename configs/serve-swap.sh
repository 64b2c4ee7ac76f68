#!/usr/bin/env bash
# Preempted requests keep their KV in host memory: 64 GiB for all ranks of this host, beside policy edf. See docs/swap.md.
# Usage: configs/serve-swap.sh MODEL [any flag of vllm serve]; SWAP_SPACE_GIB=128 before it for another size
set -euo pipefail
exec sloserve serve "$@" --policy edf --swap-space-gib "${SWAP_SPACE_GIB:-64}"
