"""Forms (``multipart/form-data``) in memory: what they state, and the same form written again.

A server that decides by the fields of a form, and passes it on, writes it again: so the next server sees exactly the
fields that this one has read, whatever their readers make of odd headers and repeated fields.
"""

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from sloserve.core.errors import InvalidRequest

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

_FORM: Final = b"multipart/form-data"
MOST_PARTS: Final = 64
MOST_TEXT_BYTES: Final = 1 << 20
"""Most bytes of all fields that are no file."""
_NAME: Final = re.compile(r"[\w.-]{1,64}(\[\])?", re.ASCII)
_FIELD: Final = "request body"
_BOUNDARY: Final = "sloserve-form"
_ENDS: Final = re.compile(rb"--sloserve-form(-*)")
_MOST_ENDS: Final = 50


@dataclass(frozen=True, slots=True)
class FormFile:
    """A file in a form.

    Args:
        name: Name of its field.
        file_name: Name that the client gives it.
        content_type: Type that the client states; empty for none.
        data: Bytes of the file.
    """

    name: str
    file_name: str
    content_type: str
    data: bytes = field(repr=False)


@dataclass(slots=True)
class Form:
    """The contents of a form.

    Args:
        values: Values of the fields that are no file, in their order; a name that ends with ``[]`` may have several.
        files: Files.
    """

    values: dict[str, list[str]] = field(default_factory=dict)
    files: list[FormFile] = field(default_factory=list)

    def value(self, name: str) -> str | None:
        """Return the value of a field; ``None`` if the form lacks it."""
        found = self.values.get(name)
        return None if found is None else found[0]

    def encoded(self) -> tuple[bytes, str]:
        """Return the form as a body, and the content type that goes with it."""
        boundary = self._boundary()
        parts: list[bytes] = []
        for name, values in self.values.items():
            for value in values:
                parts += [_head(boundary, f'form-data; name="{name}"'), value.encode(), b"\r\n"]
        for file in self.files:
            shown = re.sub(r'[^ -~]|["\\%]', "_", file.file_name)
            disposition = f'form-data; name="{file.name}"; filename="{shown}"'
            parts += [_head(boundary, disposition, file.content_type), file.data, b"\r\n"]
        return b"".join((*parts, f"--{boundary}--\r\n".encode())), f"multipart/form-data; boundary={boundary}"

    def _boundary(self) -> str:
        """Return a boundary that stands nowhere in the form; equal forms have equal ones."""
        texts = [value.encode() for values in self.values.values() for value in values]
        found = (match[1] for data in (*texts, *(file.data for file in self.files)) for match in _ENDS.finditer(data))
        longest = max(map(len, found), default=-1)
        if longest >= _MOST_ENDS:
            raise InvalidRequest(_FIELD, "its content", "a form without many dashes after its boundary")
        return f"{_BOUNDARY}{'-' * (longest + 1)}"


def is_form(content_type: bytes) -> bool:
    """Return whether a body of this type is a form."""
    return content_type.strip().lower().startswith(_FORM)


def read_form(body: bytes, content_type: bytes) -> Form:
    """Read a form. Raises: InvalidRequest for a body that is no form, or has too many fields, or one of them twice."""
    reader = _Reader()
    try:
        _, options = parse_options_header(content_type)
        parser = MultipartParser(options[b"boundary"], reader.callbacks)
        parser.write(body)
        parser.finalize()
    except (FormParserError, KeyError, UnicodeDecodeError, ValueError) as error:
        raise InvalidRequest(_FIELD, content_type[:100], f"a form ({type(error).__name__}: {error})") from None
    if not reader.is_whole:
        raise InvalidRequest(_FIELD, content_type[:100], "a form with its end")
    return reader.form


class _Reader:
    """Receives what the parser finds."""

    def __init__(self) -> None:
        self.form, self.is_whole = Form(), False
        self._headers: dict[bytes, bytes] = {}
        self._name = self._value = b""
        self._data: list[bytes] = []
        self._parts = self._text_bytes = 0

    @property
    def callbacks(self) -> "MultipartCallbacks":
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._add_name,
            "on_header_value": self._add_value,
            "on_header_end": self._end_header,
            "on_part_data": self._add_data,
            "on_part_end": self._end,
            "on_end": self._end_all,
        }

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise InvalidRequest(_FIELD, f"{self._parts} fields", f"a form of at most {MOST_PARTS} fields")
        self._headers, self._data = {}, []

    def _add_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name = self._value = b""

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        self._data.append(data[start:end])

    def _end(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        name, data = options.get(b"name", b"").decode("utf-8", "replace"), b"".join(self._data)
        if not _NAME.fullmatch(name):
            raise InvalidRequest(_FIELD, name, "a form with fields of at most 64 letters, digits, dots, - and _")
        if b"filename" in options:
            content_type = self._headers.get(b"content-type", b"").decode("latin-1")
            file_name = options[b"filename"].decode("utf-8", "replace")
            kept = content_type if content_type.isascii() and content_type.isprintable() else ""
            self.form.files.append(FormFile(name, file_name, kept, data))
            return
        self._text_bytes += len(data)
        if self._text_bytes > MOST_TEXT_BYTES:
            raise InvalidRequest(name, f"{self._text_bytes} bytes", f"at most {MOST_TEXT_BYTES} with all other fields")
        values = self.form.values.setdefault(name, [])
        if values and not name.endswith("[]"):
            raise InvalidRequest(name, "a second value", "one value; give the field once")
        values.append(data.decode())

    def _end_all(self) -> None:
        self.is_whole = True


def _head(boundary: str, disposition: str, content_type: str = "") -> bytes:
    kind = f"content-type: {content_type}\r\n" if content_type else ""
    return f"--{boundary}\r\ncontent-disposition: {disposition}\r\n{kind}\r\n".encode()
