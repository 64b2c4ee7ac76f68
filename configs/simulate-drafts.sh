#!/usr/bin/env bash
# What speculative decoding changes for the policies: chats on an H100 whose engine has a draft head (EAGLE, MTP).
# Usage: configs/simulate-drafts.sh [any flag of sloserve simulate]; DRAFTS=5 ACCEPTANCE=0.6 before it for other drafts
set -euo pipefail
exec sloserve simulate --workload sharegpt-poisson --profile h100-llama3-8b --engine model --policy stock,edf,auto \
  --num-speculative-tokens "${DRAFTS:-3}" --draft-acceptance "${ACCEPTANCE:-0.7}" "$@"
