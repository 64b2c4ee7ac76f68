"""The ``sloserve`` command: composition root, the one place that turns flags into objects.

Heavy libraries are imported by the command that needs them, so that ``--help`` and a mistyped policy answer at once.
"""

from sloserve.cli import (
    advise_command,
    bench_command,
    configs_command,
    doctor_command,
    edge_command,
    estimator_commands,
    fleet_commands,
    judge_command,
    schema_command,
    serve_commands,
    simulate_command,
    watch_commands,
    workloads_command,
)
from sloserve.cli.root import app, main

__all__ = [
    "advise_command",
    "app",
    "bench_command",
    "configs_command",
    "doctor_command",
    "edge_command",
    "estimator_commands",
    "fleet_commands",
    "judge_command",
    "main",
    "schema_command",
    "serve_commands",
    "simulate_command",
    "watch_commands",
    "workloads_command",
]
