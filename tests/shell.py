"""What the shell's environment would change in the tests, which a run of the tests leaves out."""

import os
import re
from typing import Final

_LEFT_OUT: Final = re.compile(
    # Settings of vLLM and Hugging Face's libraries, keys and addresses of client libraries.
    r"(VLLM|HF|HUGGINGFACE|TRANSFORMERS|OPENAI)_\w+"
    # Settings of servers and fleets of ours. Those that choose which tests run, and on what, stay.
    r"|SLOSERVE_(?!(CHECK_COUNTS|DATA|DIFFERENTIAL_\w+|INTEROP|PARITY|PYTHONS|RAY|SCREENSHOTS|SUBSTITUTE|TESTS|TEST_\w+|WHEELS)$)\w+"
    # How commands format what they print.
    r"|FORCE_COLOR|NO_COLOR|PY_COLORS|CLICOLOR\w*|COLUMNS|LINES|GITHUB_ACTIONS"
)
_PROXY: Final = re.compile(r"(HTTPS?|ALL|NO)_PROXY", re.IGNORECASE)

TEMPORARY: Final = "PYTEST_DEBUG_TEMPROOT"
"""Variable by which a run of pytest that a test starts has a temporary folder of its own. In the one that both share it
would take the right to enter from other users, one of whom runs PostgreSQL there."""

_proxies: Final[dict[str, str]] = {}


def leave_out_settings() -> None:
    """Remove from this process's environment what a test has to set itself, proxies included."""
    for name in list(os.environ):
        if _PROXY.fullmatch(name):
            _proxies[name] = os.environ.pop(name)
        elif _LEFT_OUT.fullmatch(name):
            del os.environ[name]


def with_proxies() -> dict[str, str]:
    """Return this process's environment with the shell's proxies, for programs that load packages from an index."""
    return os.environ | _proxies
