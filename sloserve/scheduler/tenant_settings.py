"""Types of the settings that say how the tenant of a request is known where it has no key."""

import re
from typing import Annotated, Any, Final

from pydantic import Field, PlainValidator

from sloserve.core.files.json_schema import Written
from sloserve.core.files.model import Allowed
from sloserve.wire.headers import is_ours
from sloserve.wire.peers import networks

MAX_TENANT_HEADERS: Final = 8
MAX_PROXIES: Final = 256

HEADER_NAME: Final = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,64}")


def _trusted(value: Any) -> tuple[str, ...]:
    texts = [text.strip() for text in value.split(",")] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or len(texts) > MAX_PROXIES or not all(isinstance(x, str) for x in texts):
        raise ValueError
    return networks(texts)


def _tenant_headers(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError
    names = [name.lower() for name in value if isinstance(name, str)]
    if len(names) != len(value) or len(names) > MAX_TENANT_HEADERS:
        raise ValueError
    if any(not HEADER_NAME.fullmatch(name) or is_ours(name) for name in names):
        raise ValueError
    return tuple(dict.fromkeys(names))


TenantHeaders = Annotated[
    tuple[str, ...],
    PlainValidator(_tenant_headers),
    Written(Annotated[list[str], Field(max_length=MAX_TENANT_HEADERS)]),
    Allowed(f"a list of header names, at most {MAX_TENANT_HEADERS}, none of them ours"),
]
Proxies = Annotated[
    tuple[str, ...],
    PlainValidator(_trusted),
    Written(Annotated[list[str], Field(max_length=MAX_PROXIES)] | str),
    Allowed(f"a list of at most {MAX_PROXIES} addresses or networks such as 10.0.0.0/8, or '*' for all"),
]
