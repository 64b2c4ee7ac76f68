#!/usr/bin/env bash
# Two servers on the same tasks of agents, in turn, over three seeds: stock vLLM on the first URL, sloserve on the second.
# Usage: configs/bench-tasks.sh http://host-a:8000 http://host-b:8000 [flags of sloserve bench]; RATE=0.2 before it for tasks/s
set -euo pipefail
stock=$1 ours=$2
shift 2
exec sloserve bench --url "stock=$stock" --compare "sloserve=$ours" --tasks react --task-rate "${RATE:-0.1}" \
  --task-deadline 120 --seeds 3 --warmup 8 --out bench-tasks "$@"
