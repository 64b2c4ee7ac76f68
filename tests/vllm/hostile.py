"""Requests that are meant to harm: each is answered, and the next good request is served.

A case is a name, what is sent, and the statuses that are an answer to it. Add yours to CASES.
"""

from dataclasses import dataclass, field

COMPLETIONS = "/v1/completions"
OK, REFUSED = (200,), (400,)
EITHER = (200, 400)
"""Where vLLM's own versions differ in whether they refuse or ignore it."""


@dataclass(frozen=True)
class Hostile:
    """One request. body: fields beside those of a good request, as JSON text, so that any JSON can be written.

    says: what the answer's text must contain.
    """

    name: str
    statuses: tuple[int, ...]
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    path: str = COMPLETIONS
    says: str = ""

    def content(self, model: str) -> bytes:
        prompt = '"input": "Hi"' if self.path == "/v1/responses" else '"prompt": "Hi", "max_tokens": 3'
        return f'{{"model": "{model}", {prompt}{", " if self.body else ""}{self.body}}}'.encode()

    def __str__(self) -> str:
        return self.name


def _priority(value: str) -> dict[str, str]:
    return {"X-Vllm-Priority": value}


_RANGE = "a whole number from -9223372036854775808 to 9223372036854775807"

CASES = [
    Hostile("priority header one above int64", REFUSED, _priority(f"{2**63}"), says=_RANGE),
    Hostile("priority header one below int64", REFUSED, _priority(f"{-(2**63) - 1}"), says=_RANGE),
    Hostile("priority header of 4000 digits", REFUSED, _priority("9" * 4000), says=_RANGE),
    Hostile("priority header of more digits than Python reads", OK, _priority("9" * 5000)),
    Hostile("greatest priority header", OK, _priority(f"{2**63 - 1}")),
    Hostile("least priority header", OK, _priority(f"{-(2**63)}")),
    Hostile("least priority header, which vLLM may count down", OK, _priority(f"{-(2**63)}"), path="/v1/responses"),
    Hostile("priority header that is no number", OK, _priority("urgent")),
    Hostile("priority in the body one above int64", REFUSED, body=f'"priority": {2**63}'),
    Hostile("priority in the body of 400 digits", REFUSED, body=f'"priority": {"9" * 400}'),
    Hostile("greatest priority in the body", OK, body=f'"priority": {2**63 - 1}'),
    Hostile("priority in the body as text", EITHER, body=f'"priority": "{2**63}"'),
    Hostile("priority in the body as a float", EITHER, body='"priority": 1e19'),
    Hostile("more tokens than int64 holds", EITHER, body=f'"max_tokens": {2**64}'),
    Hostile(
        "longer reply than int64 holds", REFUSED, body=f'"slo": {{"output_tokens": {2**64}}}', says="output_tokens"
    ),
    Hostile("longer time than floats hold", REFUSED, {"x-slo-e2e-ms": "9" * 400}, says="x-slo-e2e-ms"),
]
