"""A browser over HTTP/3: Chromium without a window, where it is installed (Debian: ``chromium-headless-shell``)."""

import asyncio
import base64
import hashlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sloserve.http3.listener import Listener
from tests import bounded
from tests.http3.serving import answer, certificate_files, listening, read

BROWSER = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="NOT TESTED: HTTP/3 with a browser needs Chromium, not installed"),
]

PATIENCE_S = 60.0
"""For a browser on a machine that does much else."""

PAGE = """<script>
const told = [];
async function ask(path, bytes) {
  const body = bytes ? new Uint8Array(bytes) : undefined;
  try {
    const reply = await fetch(path, {method: bytes ? "POST" : "GET", body, signal: AbortSignal.timeout(20000)});
    told.push([path, reply.status, (await reply.text()).length]);
  } catch (error) { told.push([path, 0, String(error)]); }
}
(async () => { %s; await fetch("/told", {method: "POST", body: JSON.stringify(told)}); })();
</script>"""


def key_hash() -> str:
    """What Chromium is told to trust: SHA-256 of the certificate's public key."""
    certificate = x509.load_pem_x509_certificate(Path(certificate_files()[0]).read_bytes())
    key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(hashlib.sha256(key).digest()).decode()


@asynccontextmanager
async def browser(listener: Listener) -> AsyncIterator[None]:
    """Chromium, which opens the listener's first page and knows HTTP/3 alone."""
    origin = f"localhost:{listener.port}"
    with tempfile.TemporaryDirectory(prefix="sloserve-chromium-", ignore_cleanup_errors=True) as profile:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-port=0"]
        flags += [f"--user-data-dir={profile}", f"--origin-to-force-quic-on={origin}"]
        flags += [f"--ignore-certificate-errors-spki-list={key_hash()}", "--no-first-run", "--no-proxy-server"]
        flags += ["--host-resolver-rules=MAP localhost 127.0.0.1", f"https://{origin}/"]
        quiet = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(
            str(BROWSER), *flags, stdout=quiet, stderr=quiet, start_new_session=True
        )
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # it has many processes, and its command may be a script
            await process.wait()


def visit(script: str, app: Any, **settings: Any) -> list[Any]:
    """What the browser tells of the requests that ``script`` makes of ``app``: path, status, bytes of each."""

    async def test() -> list[Any]:
        told: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

        async def served(scope: Any, receive: Any, send: Any) -> None:
            assert scope["http_version"] == "3"
            if scope["path"] == "/":
                await answer(send, (PAGE % script).encode(), headers=[(b"content-type", b"text/html")])
            elif scope["path"] == "/told":
                told.set_result(json.loads(await read(receive)))
                await answer(send, b"")
            elif scope["path"] == "/favicon.ico":
                await answer(send, b"", 404)
            else:
                await app(scope, receive, send)

        async with listening(served, **settings) as listener, browser(listener):
            return await told

    return bounded.run(test(), PATIENCE_S)


async def refusing(scope: Any, receive: Any, send: Any) -> None:
    if scope["path"] == "/read":
        body = await read(receive)
        await answer(send, body)
    else:
        if scope["path"] == "/413":
            await receive()
        await answer(send, b"no", int(scope["path"][1:]))


def test_an_answer_that_comes_before_the_end_of_an_upload_arrives() -> None:
    """Chromium looks at an answer once its upload has ended, and never if the server stops the upload."""
    told = visit("for (const path of ['/read', '/401', '/413', '/read']) await ask(path, 3e5)", refusing)
    assert told == [["/read", 200, 300_000], ["/401", 401, 2], ["/413", 413, 2], ["/read", 200, 300_000]]
