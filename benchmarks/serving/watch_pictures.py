"""Makes the pictures of docs/watch.md: the live page of a real server in an overload that begins after calm minutes.

Usage: python -m benchmarks.serving.watch_pictures [--calm 420] [--overload 150] [--rps 2.5] [--factor 3] [--out FOLDER]

The server serves builtin:tiny with few places and scarce KV. `sloserve bench` sends chats of three classes and three
tenants, of which one sends most, some with promises, and tasks of agents; after --calm seconds it sends --factor times
as many. --overload seconds later a Chromium that has watched for half a minute takes the pictures, and of what
`sloserve status` prints at 80 and 120 columns files are written beside them. Needs node and `npm ci` in clients/page.
--pages FOLDER also keeps the whole page at 360, 1280 and 1920 pixels, light and dark, for somebody to look at.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import yaml

from benchmarks.arguments import parser_for
from benchmarks.servers import ONE_THREAD, free_port, running, sloserve_command

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "clients" / "page"
KEY = "the-key-of-the-pictures"
WATCHED_S = 30
SETTINGS = {
    "policy": "edf",
    "shadow_policy": "auto",
    "classes": {
        "priority": {"rank": 0, "ttft_ms": 1000, "tpot_ms": 200, "promise": 0.9, "promise_fallback": True},
        "interactive": {"rank": 1, "ttft_ms": 3000, "tpot_ms": 200},
        "batch": {"rank": 2, "e2e_ms": 240_000},
        "background": None,
    },
    "default_class": "interactive",
    "service_tiers": {"flex": "batch"},
    "tenant_shares": {"half_life_s": 30, "weights": {"acme": 2}},
}
SLO = {
    "classes": {
        "priority": {"share": 0.15, "ttft_ms": 1000, "tpot_ms": 200},
        "interactive": {"share": 0.55, "ttft_ms": 3000, "tpot_ms": 200},
        "batch": {"share": 0.3, "e2e_ms": 240_000},
    },
    "default": "interactive",
}
PLACES = ["--max-num-seqs", "16", "--block-size", "32", "--num-gpu-blocks-override", "261"]
CHATS = ["--workload", "sharegpt-poisson", "--tenants", "globex=6,acme=2,initech=2", "--send-slo", "headers"]
CHATS += ["--max-prompt-tokens", "400", "--max-output-tokens", "200"]
TASKS = ["--tasks", "react", "--task-rate", "0.1", "--task-scale", "0.03", "--task-deadline", "60"]
TASKS += ["--task-hints", "deadline,calls,last"]


@contextmanager
def bench(url: str, folder: Path, *flags: str) -> Iterator[None]:
    """Requests of one `sloserve bench`, until the end of the block."""
    out = folder / f"bench-{len(list(folder.glob('bench-*')))}"
    out.mkdir()
    command = [sys.executable, "-m", "sloserve.cli", "bench", "--url", url, "--out", str(out), *flags]
    with (out / "log").open("w", encoding="utf-8") as log:
        sending = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            _begun(sending, out / "log")
            yield
        finally:
            sending.terminate()
            sending.wait(60)


def _begun(sending: subprocess.Popen[bytes], log: Path) -> None:
    """Waits until a bench sends its requests: it takes long to start beside a busy server."""
    for _ in range(600):
        if sending.poll() is not None:
            raise SystemExit(f"a bench ended before it sent anything:\n{log.read_text(encoding='utf-8')[-2000:]}")
        if any(one.status == psutil.CONN_ESTABLISHED for one in psutil.Process(sending.pid).net_connections()):
            return
        time.sleep(0.5)


def pictures(url: str, out: Path, pages: str) -> dict[str, object]:
    """Takes the pictures; what does not fit or is an error, and the headlines."""
    node, chromium = shutil.which("node"), shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if node is None or chromium is None:
        raise SystemExit("the pictures need node and a Chromium: install both, and run `npm ci` in clients/page")
    env = os.environ | ({"SLOSERVE_WHOLE_PAGES": pages} if pages else {})
    command = [node, "test/pictures.mjs", chromium, f"{url}/sloserve/", KEY, str(out.resolve()), str(WATCHED_S)]
    done = subprocess.run(
        command, cwd=PAGE, env=env, stdout=subprocess.PIPE, text=True, encoding="utf-8", timeout=420, check=True
    )
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def screens(url: str, out: Path) -> None:
    """Writes what `sloserve status` prints on narrow and on wide terminals."""
    for columns in ("80", "120"):
        env = os.environ | {"SLOSERVE_ADMIN_KEY": KEY, "COLUMNS": columns}
        command = [sys.executable, "-m", "sloserve.cli", "status", "--url", url]
        text = subprocess.run(command, env=env, stdout=subprocess.PIPE, encoding="utf-8", check=True).stdout
        (out / f"status-{columns}.txt").write_text(text, encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_for(
        __doc__, calm=420.0, overload=150.0, rps=2.5, factor=3.0, out=ROOT / "docs" / "images", pages="", quick=False
    )
    given = parser.parse_args(argv)
    calm_s, overload_s = (5.0, 10.0) if given.quick else (given.calm, given.overload)
    seconds = calm_s + overload_s + 300.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        out = folder if given.quick else given.out
        settings, slo = folder / "settings.yaml", folder / "slo.yaml"
        settings.write_text(yaml.safe_dump(SETTINGS), encoding="utf-8")
        slo.write_text(yaml.safe_dump(SLO), encoding="utf-8")
        command = [*sloserve_command("edf"), "--slo-config", str(settings), *PLACES]
        with running(command, free_port(), folder / "server.log", SLOSERVE_ADMIN_KEY=KEY, **ONE_THREAD) as (url, _):

            def chats(rps: float, seed: int) -> list[str]:
                return [
                    *CHATS,
                    "--slo",
                    str(slo),
                    "--rps",
                    f"{rps}",
                    "--seed",
                    f"{seed}",
                    "--max-requests",
                    f"{rps * seconds:.0f}",
                ]

            with (
                bench(url, folder, *chats(given.rps, 1)),
                bench(url, folder, *TASKS, "--task-count", f"{seconds / 10:.0f}"),
            ):
                time.sleep(calm_s)
                with bench(url, folder, *chats(given.rps * (given.factor - 1.0), 2)):
                    time.sleep(overload_s)
                    found = pictures(url, out, given.pages)
                    screens(url, Path(given.pages or folder))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
