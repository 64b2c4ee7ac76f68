"""Whether the longest tests run in full: every KV layout, policy and mode, as ``make whole`` has it; else a part."""

import os

WHOLE = os.environ.get("SLOSERVE_TESTS") == "whole"
