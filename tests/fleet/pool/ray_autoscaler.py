"""Nodes that Ray's own autoscaler adds to a cluster of this machine, in the process of that autoscaler."""

from functools import wraps
from typing import Any

from ray._private import parameter
from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider

from tests.fleet.pool.ray_cluster import agent_ports, be_patient


class Nodes(FakeMultiNodeProvider):
    """Each with a name of its own, as machines have an address of their own, and started as patiently as others."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        be_patient()
        parameter.RayParams = _named(parameter.RayParams)


def _named(params: Any) -> Any:
    @wraps(params)
    def named(**options: Any) -> Any:
        name = f"node-{int(options['env_vars']['RAY_CLOUD_INSTANCE_ID'][-5:])}"
        return params(**{**options, **agent_ports(), "node_name": name, "include_log_monitor": False})

    return named
