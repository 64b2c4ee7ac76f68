"""A check of ``sloserve doctor`` on fleets: the limit of open files."""

import resource
from collections.abc import Iterator

from sloserve.cli.doctor.finding import Finding, ok, warning
from sloserve.fleet.gateway_settings import GatewaySettings
from sloserve.fleet.run.open_files import files_for


def open_files() -> Iterator[Finding]:
    """Check the hard limit of open files: vLLM and a fleet raise their own soft limit up to it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed, requests = files_for(GatewaySettings().max_requests), GatewaySettings().max_requests
    text = f"{_limit(soft)}, up to {_limit(hard)}"
    if hard != resource.RLIM_INFINITY and hard < needed:
        remedy = f"{needed} serve a gateway's {requests} requests; raise LimitNOFILE= or ulimit -Hn"
        yield warning("open files", text, remedy)
    else:
        yield ok("open files", text)


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value}"
