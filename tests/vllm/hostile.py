"""Requests that mean harm, or are merely broken: a plain list, each with what must be answered."""

import gzip
import json
from typing import Any, NamedTuple

from tests.vllm.server import ADMIN_KEY, MODEL, USER_KEY

FIFO = "@fifo@"
"""Stands for the path of a named pipe that nobody writes to."""

ROUTE = "/v1/completions"
USER = {"Authorization": f"Bearer {USER_KEY}", "Content-Type": "application/json"}
ADMIN = {"Authorization": f"Bearer {ADMIN_KEY}", "Content-Type": "application/json"}
POLICY = "/sloserve/policy"


class Case(NamedTuple):
    """A request and its answer. body: bytes, or parts of a body whose length is not told.

    statuses: one of these is answered. says: stands in the answer. policy: at work meanwhile. applied: where it is
    served, the target of 60 s that it states holds.
    """

    name: str
    method: str
    path: str
    headers: dict[str, str]
    body: bytes | list[bytes]
    statuses: tuple[int, ...]
    says: str = ""
    policy: str = "edf"
    applied: bool = False


def change(name: str, wanted: Any, says: str) -> Case:
    """A change of policy that is refused."""
    return Case(name, "PUT", POLICY, ADMIN, json.dumps(wanted).encode(), (400,), says)


ADMIN_CASES = [
    Case("no key, large body", "PUT", POLICY, {}, b"x" * 50_000, (401,), "the admin key is needed"),
    Case("no key, endless body", "PUT", POLICY, {}, [b"x" * 1000] * 50, (401,), "the admin key is needed"),
    Case("a user's key", "GET", "/sloserve/status", USER, b"", (401,), "the admin key is needed"),
    Case("large body", "PUT", POLICY, ADMIN, b"x" * 50_000, (413,), "more than 16384 bytes"),
    Case("endless body", "PUT", POLICY, ADMIN, [b"x" * 1000] * 50, (413,), "more than 16384 bytes"),
    Case("no such route", "GET", "/sloserve/../sloserve/keys", ADMIN, b"", (404,), "no such admin route"),
    Case("no such method", "DELETE", POLICY, ADMIN, b"", (405,), "the method is PUT"),
    Case("deep body", "PUT", POLICY, ADMIN, b"[" * 16_000, (400,), "is not JSON"),
    Case("no text", "PUT", POLICY, ADMIN, b"\xff\xfe\x00", (400,), "is not JSON"),
    change("a file", {"policy": "sa:profile=/etc/passwd"}, "would name a file"),
    change("a file for the shadow", {"policy": "fcfs", "shadow_policy": "sa:profile=/etc/passwd"}, "would name a file"),
    change("a named pipe", {"policy": f"sa:profile={FIFO}"}, "would name a file"),
    change("a bad shadow policy", {"policy": "fcfs", "shadow_policy": "nope"}, "unknown policy 'nope'"),
    change("a bad policy", {"policy": "edf:preempt=perhaps", "shadow_policy": ""}, "'perhaps' is not true or false"),
    change("a long policy", {"policy": "edf" + ":preempt=no" * 60}, "at most 500 characters"),
    change("lone surrogates", {"policy": "\ud800", "\udfff": 1}, "has half of a surrogate pair"),
]


def serve(
    name: str,
    body: bytes | list[bytes],
    *statuses: int,
    says: str = "",
    headers: dict[str, str] | None = None,
    policy: str = "edf",
    applied: bool = False,
) -> Case:
    """A request for a completion."""
    return Case(name, "POST", ROUTE, USER | (headers or {}), body, statuses, says, policy, applied)


def stating(more: str, slo: str = '{"e2e_ms": 60000, "report": true}') -> bytes:
    """The text of a good request with an SLO, and ``more`` in it."""
    return f'{{"model": "{MODEL}", "prompt": "Hi", "max_tokens": 2, "slo": {slo}{more}}}'.encode(
        "utf-8", "surrogatepass"
    )


GOOD = stating("")

BODY_CASES = [
    *(
        serve(name, body, 200, applied=True)
        for name, body in {
            "NaN": stating(', "x": NaN'),
            "infinities": stating(', "x": [Infinity, -Infinity, 1e999]'),
            "escaped lone surrogate": stating(r', "x": "\ud800"'),
            "lone surrogate": stating(', "x": "\ud800"'),
            "byte order mark": b"\xef\xbb\xbf" + GOOD,
            "UTF-16": GOOD.decode().encode("utf-16"),
            "UTF-16, no mark": GOOD.decode().encode("utf-16-be"),
            "UTF-32": GOOD.decode().encode("utf-32"),
            "escaped key": GOOD.replace(b'"slo"', rb'"\u0073lo"'),
            "key given twice": GOOD.replace(b'"slo"', b'"slo": {"e2e_ms": 1}, "slo"'),
        }.items()
    ),
    serve("deep", stating(f', "x": {"[" * 900}{"]" * 900}'), 200, 400, applied=True),
    serve(
        "deep where only one parser looks", stating(f', "x": NaN, "y": {"[" * 900}{"]" * 900}'), 200, 400, applied=True
    ),
    serve("too deep", stating(f', "x": {"[" * 40_000}'), 400),
    serve("number of 5,000 digits", stating(f', "x": {"1" * 5000}'), 400),
    serve("target of 400 digits", stating("", f'{{"e2e_ms": {"1" * 400}}}'), 400, says="slo.e2e_ms"),
    serve("target NaN", stating("", '{"e2e_ms": NaN}'), 400, says="slo.e2e_ms"),
    serve("target beyond all floats", stating("", '{"e2e_ms": 1e999}'), 400, says="slo.e2e_ms"),
    serve("key of a lone surrogate", stating("", r'{"\ud800": 1}'), 400, says="is not a known key"),
    serve("long key", stating("", f'{{"{"k" * 50_000}": 1}}'), 400, says="is not a known key"),
    serve("slo a list", stating("", "[1]"), 400, says="is not an object"),
    serve("body a list", b"[1]", 400),
    serve("no body", b"", 400),
    serve("no JSON", b"{", 400),
    serve("no text", b'{"x": "\xff"}', 400),
    serve("compressed", gzip.compress(GOOD), 400, headers={"Content-Encoding": "gzip"}),
    serve("a form", GOOD, 400, headers={"Content-Type": "multipart/form-data; boundary=x"}),
    serve("plain text", GOOD, 400, headers={"Content-Type": "text/plain"}),
    serve("another JSON", GOOD, 400, headers={"Content-Type": "application/x+json"}),
    serve("too long, in parts", [b"x" * 10_000] * 11, 413, says="more than 100000 bytes"),
]

RANGE = "a whole number from -9223372036854775808 to 9223372036854775807"
UNUSED = "0, all that policy 'edf' can use"


def ranked(name: str, priority: str, *statuses: int, says: str = "", policy: str = "priority") -> Case:
    """A request with a numeric priority in its header."""
    return serve(name, GOOD, *statuses, headers={"X-Vllm-Priority": priority}, says=says, policy=policy)


def numbered(name: str, more: str, *statuses: int, says: str = "", policy: str = "priority") -> Case:
    """A request with ``more`` in its body."""
    return serve(name, stating(f", {more}"), *statuses, says=says, policy=policy)


# Where vLLM's own versions differ in whether they refuse or ignore a number, both are right.
NUMBER_CASES = [
    ranked("priority header that is not used", "5", 400, says=UNUSED, policy="edf"),
    numbered("priority text that is not used", '"priority": "5"', 400, says=UNUSED, policy="edf"),
    numbered("priority float that is not used", '"priority": 1.0', 400, says=UNUSED, policy="edf"),
    ranked("priority header one above int64", str(2**63), 400, says=RANGE),
    ranked("priority header one below int64", str(-(2**63) - 1), 400, says=RANGE),
    ranked("priority header of 4,000 digits", "9" * 4000, 400, says=RANGE),
    ranked("priority header of more digits than Python reads", "9" * 5000, 200),
    ranked("greatest priority header", str(2**63 - 1), 200),
    ranked("least priority header", str(-(2**63)), 200),
    ranked("priority header that is no number", "urgent", 200),
    numbered("priority one above int64", f'"priority": {2**63}', 400),
    numbered("priority of 400 digits", f'"priority": {"9" * 400}', 400),
    numbered("greatest priority", f'"priority": {2**63 - 1}', 200),
    numbered("priority above int64 as text", f'"priority": "{2**63}"', 200, 400),
    numbered("priority above int64 as a float", '"priority": 1e19', 200, 400),
    numbered("priority beyond all floats", '"priority": 1e999', 400),
    numbered("more tokens than int64 holds", f'"max_tokens": {2**64}', 200, 400),
    serve("longer reply than int64 holds", stating("", f'{{"output_tokens": {2**64}}}'), 400, says="output_tokens"),
    serve("unknown headers", GOOD, 400, headers={f"x-slo-a{i}": "1" for i in range(200)}, says="at most 32 unknown"),
    serve("header beyond all floats", GOOD, 400, headers={"x-slo-ttft-ms": "1e999"}, says="x-slo-ttft-ms"),
    *(
        serve(f"time to live {ttl}", GOOD, 400, headers={"x-request-ttl-ms": ttl}, says="x-request-ttl-ms")
        for ttl in ("0", "1e12", "soon")
    ),
    serve(
        "two objectives",
        GOOD,
        400,
        headers={"x-llm-d-inference-objective": "a", "x-gateway-inference-objective": "b"},
        says="which x-llm-d-inference-objective states",
    ),
    serve("hint of a length beyond int64", stating(f', "nvext": {{"agent_hints": {{"osl": {10**30}}}}}'), 200),
    serve(
        "priority that a held tenant may not state",
        GOOD,
        400,
        headers={"x-tenant-id": "small", "X-Vllm-Priority": "-1"},
        says="0 or more, the limit of class 'background'",
        policy="priority",
    ),
    serve("header of 5,000 digits", GOOD, 400, headers={"x-slo-ttft-ms": "9" * 5000}, says="x-slo-ttft-ms"),
    Case(
        "least priority header, which vLLM may count down",
        "POST",
        "/v1/responses",
        USER | {"X-Vllm-Priority": str(-(2**63))},
        json.dumps({"model": MODEL, "input": "Hi", "max_output_tokens": 2}).encode(),
        (200,),
        policy="priority",
    ),
]

CASES = [*ADMIN_CASES, *BODY_CASES, *NUMBER_CASES]
