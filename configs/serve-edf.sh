#!/usr/bin/env bash
# The same scheduler under vLLM's own server, without the sloserve command: two flags, nothing else changes.
# Usage: configs/serve-edf.sh MODEL [vllm serve flags]
set -euo pipefail
exec vllm serve "$@" \
  --scheduler-cls sloserve.vllm_plugin.SLOScheduler \
  --additional-config '{"sloserve": {"policy": "edf"}}'
