"""What differs between two versions of a fleet's file, in words for its operator."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, Final, TypeVar

from sloserve.core.errors import ConfigError
from sloserve.fleet.fleet import Fleet, FleetModel, Host

_UNSET: Final = "not set"
_FIXED: Final = (
    "store",
    "state",
    "files",
    "certificates",
    "pool.ray",
    "gateway.host",
    "gateway.port",
    "gateway.reuse_port",
    "gateway.http3",
    "gateway.ssl_certfile",
    "gateway.ssl_keyfile",
    "gateway.ssl_ca_certs",
    "gateway.ssl_cert_reqs",
    "gateway.enable_ssl_refresh",
    "settings.max_tenant_labels",
)
"""Keys, or sections, that hold for as long as a process of the fleet runs.

Listening sockets, the store and what lies in it belong to the process; with another number of labels counters would
fall.
"""
_SECRET: Final = ("environment", "arguments")
"""Fields that may hold secrets: their values are not shown."""
_WORDS: Final = {"host_memory_bytes": "host_memory_gib", "swap_space_bytes": "swap_space_gib"}
_Part = TypeVar("_Part", FleetModel, Host)


def changes(old: Fleet, new: Fleet) -> list[str]:
    """Return what differs in ``new``, one sentence each; none if nothing does."""
    return [
        *_parts("model", old.models, new.models),
        *_parts("host", old.hosts, new.hosts),
        *_classes(old, new),
        *(f"{key}: {text}" for key, text in _said(_different(_plain(old), _plain(new)))),
    ]


def check_fixed(old: Fleet, new: Fleet) -> None:
    """Raise ConfigError, with the keys, for a change that needs a restart."""
    if fixed := fixed_changes(old, new):
        raise ConfigError(
            f"{new.source}: {', '.join(fixed)}: cannot change while the fleet runs; restart it, or set "
            f"{'it' if len(fixed) == 1 else 'them'} back"
        )


def fixed_changes(old: Fleet, new: Fleet) -> list[str]:
    """Return the keys that differ and cannot change while the fleet runs."""
    changed = _different(_plain(old), _plain(new))
    return [key for key in changed if any(key == fixed or key.startswith(f"{fixed}.") for fixed in _FIXED)]


def _parts(what: str, old: Mapping[str, _Part], new: Mapping[str, _Part]) -> Iterator[str]:
    for name in [*old, *(name for name in new if name not in old)]:
        if name not in new:
            yield f"{what} {name} is removed"
        elif name not in old:
            yield f"{what} {name} is added"
        elif found := list(_differences(old[name], new[name])):
            yield f"{what} {name} changes: {', '.join(found)}"


def _differences(old: Any, new: Any) -> Iterator[str]:
    """Yield the fields of two dataclasses that differ."""
    for one in fields(old):
        before, after = getattr(old, one.name), getattr(new, one.name)
        if before == after:
            continue
        if one.name in ("start", "flags"):
            yield from _differences(before, after) if one.name == "start" else _flags(before, after)
        elif one.name in _SECRET or not _is_plain(before) or not _is_plain(after):
            yield one.name
        else:
            yield f"{_WORDS.get(one.name, one.name)} {_shown(one.name, before)} becomes {_shown(one.name, after)}"


def _flags(old: Any, new: Any) -> Iterator[str]:
    for key, text in _said(_different(old.model_dump(), new.model_dump())):
        yield f"{key} {text}"


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def _shown(name: str, value: Any) -> str:
    if name in _WORDS:
        return f"{value / 2**30:g}"
    return _text(value)


def _classes(old: Fleet, new: Fleet) -> Iterator[str]:
    before, after = old.settings.classes, new.settings.classes
    for name in before.names:
        if name not in after:
            yield f"class {name} is removed"
    for one in after:
        if one.name not in before:
            yield f"class {one.name} is added"
        elif found := _different(before[one.name].as_config(), one.as_config()):
            yield f"class {one.name} changes: {', '.join(f'{key} {text}' for key, text in _said(found))}"
    if before.default.name != after.default.name:
        yield f"the default class {before.default.name} becomes {after.default.name}"


def _plain(fleet: Fleet) -> dict[str, Any]:
    """Return the values of a file by their keys, apart from models, hosts and classes."""
    own: dict[str, Any] = {name: getattr(fleet, name) for name in ("store", "state", "files", "planner")}
    own["media_domains"] = list(fleet.media_domains)
    own["active_on"] = dict(fleet.active)
    own["router"] = None if fleet.router is None else fleet.router.settings.model_dump()
    for name in ("switching", "gateway", "batches", "pool", "certificates"):
        own[name] = getattr(fleet, name).model_dump()
    own["settings"] = {key: value for key, value in fleet.section.items() if key not in ("classes", "default_class")}
    return _flat(own)


def _flat(value: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by their keys, as ``gateway.port``."""
    found: dict[str, Any] = {}
    for key, one in value.items():
        if isinstance(one, Mapping):
            found.update(_flat(one, f"{before}{key}."))
        else:
            found[f"{before}{key}"] = one
    return found


def _different(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the values before and after of each key that differs."""
    return {
        key: (old.get(key), new.get(key))
        for key in [*old, *(key for key in new if key not in old)]
        if old.get(key) != new.get(key)
    }


def _said(different: Mapping[str, tuple[Any, Any]]) -> Iterator[tuple[str, str]]:
    """Yield each key with the words for its values, unless they may hold a secret."""
    for key, (before, after) in different.items():
        is_secret = key == "store" or not set(key.split(".")).isdisjoint(_SECRET)
        yield key, "has changed" if is_secret else f"{_text(before)} becomes {_text(after)}"


def _text(value: Any) -> str:
    return _UNSET if value is None else f"{value:g}" if isinstance(value, float) else str(value)
