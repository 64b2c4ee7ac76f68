"""Our headers and fields on vLLM's routes as an OpenAPI document, from which schemathesis makes requests."""

from typing import Any

from sloserve.wire.body import NESTED, REPORT
from sloserve.wire.headers import FIELDS, TENANTS
from sloserve.wire.headers import REPORT as REPORT_HEADER
from sloserve.wire.xargs import KEYS

PRIORITY = "x-vllm-priority"
JUNK: dict[str, Any] = {"anyOf": [{"type": "string", "maxLength": 30}, {"type": "boolean"}, {"type": "number"}]}


def mostly(*valid: Any) -> dict[str, Any]:
    """A value that is one of ``valid`` two times out of three: else nearly every request would be wrong somewhere."""
    return {"anyOf": [{"enum": list(valid)}, {"enum": list(valid)}, JUNK]}


def of_key(key: str) -> dict[str, Any]:
    return mostly("batch", "interactive") if key == "slo_class" else mostly(500, "1e3", 0.5)


def of_header(name: str) -> dict[str, Any]:
    key = FIELDS.get(name)
    if key is not None:
        return {
            "anyOf": [{"enum": ["batch", "interactive"] if key == "slo_class" else ["500"]}, {"enum": ["soon", ""]}]
        }
    if name in TENANTS:
        return {"enum": ["acme", "acme", "x" * 200]}
    return {"enum": ["1", "0"]} if name in (REPORT_HEADER, PRIORITY) else {"type": "string", "maxLength": 200}


def document() -> dict[str, Any]:
    """OpenAPI 3.1 of ``/v1/completions`` and ``/v1/chat/completions`` as far as SLOs are concerned."""
    nested = {name: of_key(key) for name, key in NESTED.items()} | {REPORT: mostly(True, False)}
    slo = {"type": "object", "properties": nested}
    xargs = {"type": "object", "properties": {key: of_key(key) for key in KEYS}, "additionalProperties": False}
    stated = {
        "model": {"const": "builtin:tiny"},
        "max_tokens": {"const": 1},
        "stream": {"type": "boolean"},
        "slo": {"anyOf": [slo, slo, JUNK]},
        "service_tier": mostly("auto", "flex", "priority", "default"),
        "priority": mostly(0),
        "vllm_xargs": xargs,
    }
    prompts = {
        "/v1/completions": {"prompt": {"const": "Hi"}},
        "/v1/chat/completions": {"messages": {"const": [{"role": "user", "content": "Hi"}]}},
    }
    names = (*FIELDS, *TENANTS, REPORT_HEADER, PRIORITY, "x-request-id")
    parameters = [{"name": name, "in": "header", "required": False, "schema": of_header(name)} for name in names]

    def operation(prompt: dict[str, Any]) -> dict[str, Any]:
        body = {
            "type": "object",
            "properties": stated | prompt,
            "required": ["model", "max_tokens", *prompt],
            "additionalProperties": False,
        }
        return {
            "parameters": parameters,
            "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
            "responses": {"200": {"description": "a reply"}, "400": {"description": "what is wrong"}},
        }

    paths = {path: {"post": operation(prompt)} for path, prompt in prompts.items()}
    return {"openapi": "3.1.0", "info": {"title": "SLOs on vLLM's routes", "version": "1"}, "paths": paths}
