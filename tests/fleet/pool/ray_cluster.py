"""A Ray cluster of several nodes on this machine, in a process of its own: ``python -m tests.fleet.pool.ray_cluster``.

A line of JSON on standard input is a call of :class:`Nodes`, one on standard output its answer. It ends with its input.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from ray import _raylet
from ray._private import services
from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID, FAKE_HEAD_NODE_TYPE
from ray.cluster_utils import Cluster
from ray.core.generated import autoscaler_pb2

from sloserve.core.clock import SystemClock
from tests.ports import free_port

_TRIES = 3
"""Of a node's start: a raylet aborts where the machine is too busy to write the files of its ports in time."""
_START_S = 200.0
_IDLE_S = 3.0
"""A node that does nothing for so long is taken away by Ray's autoscaler, where there is one."""
_PORT_FILES = {
    "metrics_agent_port": _raylet.METRICS_AGENT_PORT_NAME,
    "metrics_export_port": _raylet.METRICS_EXPORT_PORT_NAME,
    "dashboard_agent_listen_port": _raylet.DASHBOARD_AGENT_LISTEN_PORT_NAME,
    "runtime_env_agent_port": _raylet.RUNTIME_ENV_AGENT_PORT_NAME,
}
_NODE = {"include_dashboard": False, "include_log_monitor": False, "object_store_memory": 80 << 20}


class Nodes:
    def __init__(self) -> None:
        self._cluster = Cluster()
        self._port = free_port()
        self._nodes: dict[str, Any] = {}
        self._ends = threading.Event()

    def head(self, most: int = 0) -> str:
        """Starts the head, which has no CPU; after :meth:`lose_head` one at the address of the old. Its address.

        most: so many nodes Ray's autoscaler may add.
        """
        options: dict[str, Any] = {"no_monitor": True}
        if most:
            address = f"{services.get_node_ip_address()}:{self._port}"
            options = {"autoscaling_config": autoscaling_config(address, most)}
        self._start(num_cpus=0, node_name="head", gcs_server_port=self._port, **options)
        return str(self._cluster.address)

    def lose_head(self) -> None:
        """Kills all processes of the head, as when its machine dies."""
        self._cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
        self._cluster.head_node = None

    def add(self, name: str, **labels: str) -> str:
        """A node with one CPU, and its id."""
        self._nodes[name] = self._start(num_cpus=1, node_name=name, labels=labels or None)
        return str(self._nodes[name].node_id)

    def only(self, *names: str) -> None:
        """These nodes are there, and no others: after a fault for the next one."""
        for name, node in list(self._nodes.items()):
            if name not in names or node.all_processes["raylet"][0].process.poll() is not None:
                self.remove(name)
        for name in names:
            if name not in self._nodes:
                self.add(name)

    def signal(self, what: str, name: str, number: int) -> int:
        """Sends it to the raylet of a node, or to the GCS server of the head; the process's id."""
        node = self._cluster.head_node if what == "gcs_server" else self._nodes[name]
        process = node.all_processes[what][0].process
        os.kill(process.pid, number)
        if number == signal.SIGKILL:
            process.wait(60)
        return int(process.pid)

    def remove(self, name: str) -> None:
        """Ends a node as an autoscaler does."""
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=True)

    def drain(self, name: str, seconds: float) -> bool:
        """Says that a node goes in so many seconds, as when a cloud evicts a spot instance; whether Ray accepts it."""
        reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        until_ms = int((SystemClock().now_s() + seconds) * 1000.0)
        client = _raylet.GcsClient(address=self._cluster.address)
        return bool(client.drain_node(self._nodes[name].node_id, reason, "the test says so", until_ms)[0])

    def reap(self) -> None:
        """Until this process ends: workers of a raylet that has ended go on while it is a zombie."""
        while not self._ends.wait(0.5):
            for node in list(self._nodes.values()):
                for raylet in node.all_processes.get("raylet", ()):
                    raylet.process.poll()

    def alive(self) -> list[str]:
        """Names of the nodes that there are, but for the head's."""
        nodes = self._cluster.global_state.node_table()
        return sorted(str(one["NodeName"]) for one in nodes if one["Alive"] and one["Resources"].get("CPU"))

    def end(self) -> None:
        self._ends.set()
        session = self._cluster.head_node.get_session_dir_path()
        self._cluster.shutdown()
        for pid in _raylets(session):  # of nodes that the autoscaler has added
            os.kill(pid, signal.SIGKILL)

    def _start(self, **options: Any) -> Any:
        for left in reversed(range(_TRIES)):
            before = _children()
            try:
                return self._cluster.add_node(**_NODE, **agent_ports(), **options)
            except Exception:
                for pid in _children() - before:  # else the node could still come, under a name that is taken
                    os.kill(pid, signal.SIGKILL)
                if not left:
                    raise


def agent_ports() -> dict[str, int]:
    """Of a node, for options of its start."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in _PORT_FILES]
    ports = {name: int(probe.getsockname()[1]) for name, probe in zip(_PORT_FILES, probes, strict=True)}
    for probe in probes:
        probe.close()
    return ports


def _children() -> set[int]:
    """Processes that this one has started."""
    return {int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def _raylets(session: str) -> list[int]:
    """Of a cluster whose session keeps its files in a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = entry.read_bytes().split(b"\0")
            if words[0].endswith(b"/raylet") and any(session.encode() in word for word in words):
                found.append(int(entry.parent.name))
    return found


def autoscaling_config(address: str, most: int) -> str:
    """The path of a file that has Ray's autoscaler add up to so many nodes with one CPU to the cluster at an address.

    ``ray.cluster_utils.AutoscalingCluster`` needs a file that Ray's wheel does not have, and ends every Ray on this
    machine before it starts one; nodes come from the same provider.
    """
    one = {"resources": {"CPU": 1, "object_store_memory": _NODE["object_store_memory"]}, "node_config": {}}
    provider = {
        "type": "external",
        "module": "tests.fleet.pool.ray_autoscaler.Nodes",
        "gcs_address": address,
        "head_node_id": FAKE_HEAD_NODE_ID,
        "launch_multiple": True,
        "use_node_id_as_ip": True,
        "disable_node_updaters": True,
        "disable_launch_config_check": True,
    }
    empty: dict[str, Any] = dict.fromkeys(("auth", "file_mounts"), {})
    of_commands = [f"{who}_commands" for who in ("initialization", "setup", "head_setup", "worker_setup")]
    of_commands += ["head_start_ray_commands", "worker_start_ray_commands"]
    empty |= dict.fromkeys(["cluster_synced_files", *of_commands], [])
    config = {
        **empty,
        "cluster_name": "tests",
        "max_workers": most,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": _IDLE_S / 60.0,
        "provider": provider,
        "head_node_type": FAKE_HEAD_NODE_TYPE,
        "available_node_types": {
            FAKE_HEAD_NODE_TYPE: {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "one": {**one, "min_workers": 0, "max_workers": most},
        },
    }
    with NamedTemporaryFile("w", suffix=".json", delete=False) as file:
        json.dump(config, file)
    return file.name


def be_patient() -> None:
    """Has nodes start on a busy machine.

    A raylet aborts whose agents take 15 s to write the files of their ports: these are written before. It has 30 s to
    tell the GCS of itself: from now on _START_S.
    """
    get_node, start_raylet, clock = services.get_node, services.start_raylet, SystemClock()

    def patient(*arguments: Any) -> Any:
        until_s = clock.monotonic_s() + _START_S
        while True:
            try:
                return get_node(*arguments)
            except RuntimeError:
                if clock.monotonic_s() > until_s:
                    raise
            time.sleep(0.5)

    def with_ports(*arguments: Any, **options: Any) -> Any:
        node_id, session = arguments[2], arguments[11]
        for option, file in _PORT_FILES.items():
            _raylet.persist_port(session, node_id, file, options[option])
        return start_raylet(*arguments, **options)

    services.get_node, services.start_raylet = patient, with_ports


def main() -> None:
    be_patient()
    nodes, answers = Nodes(), os.fdopen(os.dup(1), "w", buffering=1)
    threading.Thread(target=nodes.reap, daemon=True).start()
    os.dup2(2, 1)  # Ray's own words are no answers
    try:
        for line in sys.stdin:
            name, arguments, named = json.loads(line)
            answers.write(json.dumps(getattr(nodes, name)(*arguments, **named)) + "\n")
    finally:
        nodes.end()


if __name__ == "__main__":
    main()
