"""The file of an endpoint picker says where its servers are, what is known of their models, and how it listens.

configs/picker.yaml is an example. Every fault is one line that names file, line, column, key, value and what is
allowed.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, Field

from sloserve.core.errors import ConfigError
from sloserve.core.files.json_schema import schema_of
from sloserve.core.files.kinds import reading
from sloserve.core.files.marked_yaml import Node, load_yaml
from sloserve.core.files.model import Allowed, Problem, at_place, check_model, unknown
from sloserve.fleet.beside.choice_settings import ChoiceSection, ServedModel, pace_of
from sloserve.fleet.file_sections import Section, Text
from sloserve.scheduler.settings import PluginSettings, file_problems, policy_problems, read_settings

PICKER_FILE: Final = "picker"
"""Name of this kind of file."""
MOST_SERVERS: Final = 1024
"""Most servers of one picker; a longer list is cut there."""
SELF_SIGNED: Final = "self-signed"
"""Value of ``certfile`` with which a picker makes a certificate at its start, for gateways that check none."""

_Model = TypeVar("_Model", bound=BaseModel)
_ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[0-9A-Za-z.-]+):[0-9]{1,5}")
_Port = Annotated[int, Field(strict=True, ge=0, le=65535), Allowed("a port, 0 for any that is free")]


def is_address(text: str) -> bool:
    """Return whether a text is an address, IP:PORT or [IP]:PORT."""
    return _ADDRESS.fullmatch(text) is not None


def _addresses(values: tuple[str, ...]) -> tuple[str, ...]:
    if not all(is_address(value) for value in values):
        raise ValueError
    return values


class ServersSection(Section):
    """Place of the servers: one of a list, a file and a name in DNS.

    Args:
        addresses: Addresses of the servers.
        file: File with an address in each line, which is read again when it changes.
        dns: Name of which each address is a server, as a headless service of Kubernetes has one.
        port: Port of the servers behind ``dns``.
        scheme: Scheme of the servers' routes.
        look_s: Seconds between looks for servers in ``file`` or ``dns``.
        sample_s: Seconds between questions for the metrics of each server.
    """

    addresses: Annotated[
        Annotated[tuple[str, ...], Field(max_length=MOST_SERVERS), AfterValidator(_addresses)] | None,
        Allowed(f"a list of at most {MOST_SERVERS} addresses, as 10.0.0.1:8000"),
    ] = None
    file: Annotated[Text | None, Allowed("the path of a file with an address in each line")] = None
    dns: Annotated[Text | None, Allowed("a name in DNS")] = None
    port: Annotated[int, Field(strict=True, ge=1, le=65535), Allowed("a port")] = 8000
    scheme: Annotated[Literal["http", "https"], Allowed("http or https")] = "http"
    look_s: Annotated[float, Field(strict=True, ge=0.1, le=3600.0), Allowed("a number of seconds from 0.1 to 3600")] = (
        5.0
    )
    sample_s: Annotated[float, Field(strict=True, ge=0.02, le=2.0), Allowed("a number of seconds from 0.02 to 2")] = (
        0.25
    )


class ListenSection(Section):
    """How the picker listens, and what it keeps in memory.

    Args:
        host: Address to listen on.
        port: Port of gRPC: the picker, and its health unless ``health_port`` is given.
        health_port: Port of gRPC with the health service alone, without TLS, for probes.
        metrics_port: Port of HTTP with ``/metrics``; none without it.
        certfile, keyfile: PEM files of its certificate; with ``self-signed`` as certfile it makes one at its start.
        max_requests: The most requests between their headers and the end of their responses.
        max_body_mib: The most MiB of a body that is kept to read it; of a longer one the headers decide.
        max_bodies_mib: The most MiB of all bodies that are kept.
        others: Number of further servers that each response names, for gateways that try the next one.
    """

    host: Annotated[Text, Allowed("an address to listen on")] = "127.0.0.1"
    port: _Port = 9002
    health_port: Annotated[_Port | None, Allowed("a port, 0 for any that is free")] = None
    metrics_port: Annotated[_Port | None, Allowed("a port, 0 for any that is free")] = None
    certfile: Annotated[Text | None, Allowed("the path of a PEM file, or self-signed")] = None
    keyfile: Annotated[Text | None, Allowed("the path of a PEM file")] = None
    max_requests: Annotated[int, Field(strict=True, ge=1, le=1 << 20), Allowed("a whole number from 1 to 1048576")] = (
        4096
    )
    max_body_mib: Annotated[int, Field(strict=True, ge=1, le=1024), Allowed("a whole number from 1 to 1024")] = 4
    max_bodies_mib: Annotated[int, Field(strict=True, ge=1, le=65536), Allowed("a whole number from 1 to 65536")] = 256
    others: Annotated[int, Field(strict=True, ge=0, le=4), Allowed("a whole number from 0 to 4")] = 0


class PickerSections(BaseModel):
    """The file as it is written."""

    servers: Annotated[ServersSection, Allowed("a mapping with addresses, file or dns")]
    models: Annotated[dict[str, ServedModel], Allowed("a mapping of name to model")] = {}
    choice: Annotated[ChoiceSection, Allowed("how servers are chosen")] = ChoiceSection()
    settings: Annotated[PluginSettings, Allowed("settings of the classes, as configs/serve.yaml")] = PluginSettings()
    listen: Annotated[ListenSection, Allowed("address, port and limits")] = ListenSection()


@dataclass(frozen=True, slots=True)
class PickerFile:
    """The contents of a picker's file.

    Args:
        folder: Folder of the file, in which the files that it names are.
    """

    servers: ServersSection
    models: dict[str, ServedModel]
    choice: ChoiceSection
    settings: PluginSettings
    listen: ListenSection
    folder: Path


def read_picker(path: str | Path) -> PickerFile:
    """Return the contents of the file at ``path``. Raises: ConfigError that lists every fault, one line each."""
    path = Path(path)
    with reading(PICKER_FILE, path):
        root = load_yaml(path)
        found, problems = _read(root, path.parent)
    if problems or found is None:
        raise ConfigError("\n".join(at_place(root, problem) for problem in problems))
    return found


def picker_schema() -> dict[str, Any]:
    """Return the JSON schema of PickerSections, for ``sloserve schema picker``."""
    return schema_of(PickerSections, "Endpoint picker of sloserve")


def _read(root: Node, folder: Path) -> tuple[PickerFile | None, list[Problem]]:
    top = root.mapping(tuple(PickerSections.model_fields))
    if "servers" not in top:
        raise root.fail("no servers; a picker needs addresses, file or dns under servers")
    problems: list[Problem] = []
    servers = _checked(ServersSection, top["servers"], ("servers",), problems)
    choice = _checked(ChoiceSection, top.get("choice"), ("choice",), problems)
    listen = _checked(ListenSection, top.get("listen"), ("listen",), problems)
    models = {}
    for name, node in (top["models"].mapping() if "models" in top else {}).items():
        model = _checked(ServedModel, node, ("models", name), problems)
        if model is not None:
            models[name] = _beside(model, folder)
            try:
                pace_of(models[name])
            except ConfigError as error:
                problems.append(Problem(("models", name, "profile"), str(error)))
    section = top["settings"].plain() if "settings" in top else {}
    settings, wrong = read_settings(section)
    wrong += policy_problems(section) if isinstance(section, dict) else []
    wrong += [] if settings is None else file_problems(settings)
    problems += [Problem(("settings", *path), text) for path, text in wrong]
    if servers is None or choice is None or listen is None or settings is None or problems:
        return None, problems
    problems += [*_wrong_servers(servers), *_wrong_classes(choice, settings), *_wrong_files(listen)]
    return PickerFile(servers, models, choice, settings, listen, folder), problems


def _checked(kind: type[_Model], node: Node | None, at: tuple[str, ...], problems: list[Problem]) -> _Model | None:
    found, wrong = check_model(kind, {} if node is None else node.plain(), at)
    problems += wrong
    return found


def _beside(model: ServedModel, folder: Path) -> ServedModel:
    """Return the model with the path of its profile, which may lie beside the file."""
    if model.profile is not None and (folder / model.profile).is_file():
        return model.model_copy(update={"profile": str(folder / model.profile)})
    return model


def _wrong_servers(servers: ServersSection) -> list[Problem]:
    given = [name for name in ("addresses", "file", "dns") if getattr(servers, name) is not None]
    if len(given) == 1:
        return []
    found = f"{' and '.join(given)} are given" if given else "nothing of it is given"
    return [Problem(("servers",), f"{found}; give one of addresses, file and dns")]


def _wrong_classes(choice: ChoiceSection, settings: PluginSettings) -> list[Problem]:
    known = settings.classes.names
    return [
        Problem(("choice", "shed", i), f"class {name!r} {unknown(name, known)}")
        for i, name in enumerate(choice.shed)
        if name not in known
    ]


def _wrong_files(listen: ListenSection) -> list[Problem]:
    is_own = listen.certfile == SELF_SIGNED
    if (listen.keyfile is None) == (listen.certfile is None or is_own):
        return []
    text = "certfile and keyfile belong together, and self-signed needs no keyfile"
    return [Problem(("listen", "certfile"), text)]
