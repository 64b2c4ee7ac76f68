"""A Ray cluster of several nodes on this machine, in a process of its own: ``python -m tests.fleet.pool.ray_cluster``.

A line of JSON on standard input is a call of :class:`Nodes`, one on standard output its answer. It ends with its input.
"""

import json
import os
import signal
import sys
from typing import Any

from ray.cluster_utils import Cluster

_TRIES = 3
"""Of a node's start: a raylet aborts where the machine is too busy to write the files of its ports in time."""
_NODE = {"include_dashboard": False, "object_store_memory": 80 << 20}


class Nodes:
    def __init__(self) -> None:
        self._cluster: Cluster | None = None
        self._nodes: dict[str, Any] = {}

    def head(self) -> str:
        """The address of a new cluster, whose head has no CPU."""
        self._cluster = Cluster(initialize_head=True, head_node_args={**_NODE, "num_cpus": 0, "node_name": "head"})
        return str(self._cluster.address)

    def add(self, name: str, **labels: str) -> str:
        """A node with one CPU, and its id."""
        assert self._cluster is not None
        for left in reversed(range(_TRIES)):
            try:
                node = self._cluster.add_node(**_NODE, num_cpus=1, node_name=name, labels=labels or None)
                break
            except Exception:
                if not left:
                    raise
        self._nodes[name] = node
        return str(node.node_id)

    def signal(self, what: str, name: str, number: int) -> int:
        """Sends it to the raylet of a node, or to the GCS server of the head; the process's id."""
        assert self._cluster is not None
        node = self._cluster.head_node if what == "gcs_server" else self._nodes[name]
        process = node.all_processes[what][0].process
        os.kill(process.pid, number)
        if number == signal.SIGKILL:
            process.wait()
        return int(process.pid)

    def remove(self, name: str) -> None:
        """Ends a node as an autoscaler does."""
        assert self._cluster is not None
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=True)

    def end(self) -> None:
        if self._cluster is not None:
            self._cluster.shutdown()


def main() -> None:
    nodes, answers = Nodes(), os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Ray's own words are no answers
    try:
        for line in sys.stdin:
            name, arguments, named = json.loads(line)
            answers.write(json.dumps(getattr(nodes, name)(*arguments, **named)) + "\n")
    finally:
        nodes.end()


if __name__ == "__main__":
    main()
