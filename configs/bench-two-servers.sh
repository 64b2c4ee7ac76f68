#!/usr/bin/env bash
# Two servers on the same requests, in turn, over five seeds: stock vLLM on the first URL, sloserve on the second.
# Usage: configs/bench-two-servers.sh http://host-a:8000 http://host-b:8000 TRACE [flags of sloserve bench]
set -euo pipefail
stock=$1 ours=$2 trace=$3
shift 3
exec sloserve bench --url "stock=$stock" --compare "sloserve=$ours" --trace "$trace" \
  --slo "$(dirname "$0")/slo-default.yaml" --seeds 5 --warmup 8 --report --out bench-two-servers "$@"
