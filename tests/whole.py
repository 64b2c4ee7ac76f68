"""Whether tests of KV layouts run whole: every model, policy and mode, as ``make layouts`` has it; else a part."""

import os

WHOLE = os.environ.get("SLOSERVE_LAYOUTS") == "whole"
