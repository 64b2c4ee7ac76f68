"""Lines of JSON, which end with a line feed and nothing else.

``str.splitlines`` also ends a line at nine other characters, of which JSON strings may hold three unescaped: U+0085,
U+2028 and U+2029. What others wrote is therefore split at line feeds alone, and what is written here has these three
escaped, so that ``splitlines`` finds one line for each value.
"""

from typing import Final

_ESCAPED: Final = tuple((char.encode(), f"\\u{ord(char):04x}".encode()) for char in "\u0085\u2028\u2029")


def lines_of(text: str) -> list[str]:
    """Return the lines of ``text``, split at line feeds alone, without their ends; CR LF is an end, too."""
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def as_line(json: bytes) -> bytes:
    """Return the JSON value, in UTF-8 and without line breaks between its parts, as one line with its end.

    Its strings are the only places in which the three characters can stand, so that the value stays the same.
    """
    for raw, escaped in _ESCAPED:
        json = json.replace(raw, escaped)
    return json + b"\n"
