"""The job with which a forwarding process is started."""

import msgspec


class ForwarderJob(msgspec.Struct):
    """The job of a forwarding process. One with another job is replaced.

    Args:
        instances: Names of the agent's instances.
        host: Name of the host, which its certificate has.
        reports: Path of the unix socket on which the agent responds to ``GET /state``.
        decisions: Path of the unix socket on which the agent decides requests.
        endpoint: Address of the endpoint, as the agent's settings state it.
        key: Keys, one of which requests must show; ``None`` to ask for none.
        certificates: Folder of certificates for an endpoint with TLS; ``None`` for one without.
        of_gateways: Whether gateways show certificates.
        version: Digest of the installed code.
    """

    instances: list[str]
    host: str
    reports: str
    decisions: str
    endpoint: str = ""
    key: str | None = None
    certificates: str | None = None
    of_gateways: bool = False
    version: str = ""
