"""Makes the published results of the simulator anew at one commit: runs each folder's command, and replaces its files.

Usage: python -m benchmarks.republish [--names econo-sharegpt,qoe-reading] [--lanes 2] [--list]

It takes the folders whose ``command.txt`` has one command, of ``sloserve simulate`` or of a section of QLM's fleet.
Those that are of this commit already are left as they are, so that a run which was stopped goes on; nothing is replaced
where a command fails. Traces are looked for where SLOSERVE_DATA says. Afterwards: ``pytest tests/docs --update-docs``,
and what pages say of figures is to be read again.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, RUNS, load_text, provenance, save_text, short_figures
from sloserve.sim.report.runs_csv import RUNS_CSV

COMMAND: Final = "command.txt"
OUT: Final = "OUT"
"""In a command: the folder that it writes to."""
DATA: Final = "SLOSERVE_DATA=DATA "
_COMMIT: Final = re.compile(r"# Commit ([0-9a-f]+)")
_OURS: Final = re.compile(rf"sloserve simulate .*--out {OUT}$|python -m benchmarks\.fleet\.fleet_qlm --section [\w-]+")
_NOT_THE_TABLE: Final = re.compile(r"(requests: |simulations: |wrote |WARNING )")


@dataclass(frozen=True, slots=True)
class Published:
    """folder: of results. command: its line of ``command.txt``. remarks: the lines after it. commit: that made it."""

    folder: Path
    command: str
    remarks: tuple[str, ...]
    commit: str

    def arguments(self, out: Path) -> list[str]:
        """The command with this interpreter, writing to ``out``, in one process."""
        program, *given = shlex.split(self.command.removeprefix(DATA))
        if OUT not in given:
            given += ["--out", OUT]
        given = [str(out) if word == OUT else word for word in given]
        return [sys.executable, *(given if program == "python" else ["-m", "sloserve.cli", *given, "--jobs", "1"])]


def published(results: Path) -> Iterator[Published]:
    """All folders that can be made anew, in the order of their names."""
    for path in sorted(results.glob(f"*/{COMMAND}")):
        head, *lines = path.read_text(encoding="utf-8").splitlines()
        commands = [line for line in lines if not line.startswith("#")]
        found = _COMMIT.match(head)
        if found is None or len(commands) != 1 or lines[0] != commands[0]:
            continue
        command = commands[0].removeprefix(DATA)
        if _OURS.match(command):
            yield Published(path.parent, lines[0], tuple(lines[1:]), found[1])


def make_anew(one: Published, commit: str, vllm: str) -> str:
    """Replaces the files of ``one``; returns a line that says how that went."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        log = out / "log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                one.arguments(out), stdout=file, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )
            _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if status or not (out / RUNS_CSV).exists():
            return f"{one.folder.name} FAILED with {process.returncode}: {log.read_text(encoding='utf-8')[-2000:]}"
        minutes = (used.ru_utime + used.ru_stime) / 60
        if (one.folder / RUNS).exists():
            save_text(one.folder / RUNS, short_figures(load_text(out / RUNS_CSV)))
        for path in out.iterdir():
            if path.name == "table.txt" or (one.folder / path.name).exists():
                shutil.copy(path, one.folder / path.name)
        if not (out / "table.txt").exists():
            (one.folder / "table.txt").write_text(printed_table(log.read_text(encoding="utf-8")), encoding="utf-8")
        head = (
            f"# Commit {commit}, engine model of vLLM {vllm}, ageing and planning as shipped; "
            f"{minutes:.1f} minutes of CPU time"
        )
        (one.folder / COMMAND).write_text("\n".join((head, one.command, *one.remarks)) + "\n", encoding="utf-8")
        return f"{one.folder.name}: {minutes:.1f} minutes of CPU time"


def printed_table(log: str) -> str:
    """What a command printed, without the lines that tell of progress and of files."""
    lines = [line.rstrip() for line in log.replace("\r", "\n").splitlines()]
    return "\n".join(line for line in lines if not _NOT_THE_TABLE.match(line.strip())).strip("\n") + "\n"


def main() -> None:
    parser = parser_for(__doc__, names="", lanes=2, list=False)
    given = parser.parse_args()
    every = {one.folder.name: one for one in published(RESULTS)}
    names = given.names.split(",") if given.names else list(every)
    unknown = set(names) - every.keys()
    if unknown:
        parser.error(f"--names: {', '.join(sorted(unknown))} cannot be made anew; {', '.join(every)} can")
    made = provenance()
    commit, vllm = str(made["commit"]), str(made["vllm"])
    due = [every[name] for name in names if every[name].commit != commit]
    if given.list:
        print("\n".join(f"{one.folder.name} {one.commit}" for one in due))
        return
    if "SLOSERVE_DATA" not in os.environ and any(one.command.startswith(DATA) for one in due):
        parser.error("SLOSERVE_DATA is not set; set it to the folder of production traces, or name folders by --names")
    failed = 0
    with ThreadPoolExecutor(given.lanes) as lanes:
        for said in lanes.map(lambda one: make_anew(one, commit, vllm), due):
            print(said, flush=True)
            failed += " FAILED " in said
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
