"""Single changes of C++ code, token by token: another comparison, operator, number or function."""

import re
from collections.abc import Iterator

from tests.mutants.python_code import Change

_TOKENS = {
    " < ": " <= ",
    " <= ": " < ",
    " > ": " >= ",
    " >= ": " > ",
    " == ": " != ",
    " != ": " == ",
    " && ": " || ",
    " || ": " && ",
    " + ": " - ",
    " - ": " + ",
    " * ": " / ",
    " / ": " * ",
    " += ": " -= ",
    " -= ": " += ",
    "std::min": "std::max",
    "std::max": "std::min",
    "std::fmin": "std::fmax",
    "std::upper_bound": "std::lower_bound",
    "std::lower_bound": "std::upper_bound",
    "continue;": ";",
}
_TOKEN = re.compile(
    "|".join(map(re.escape, sorted(_TOKENS, key=len, reverse=True))) + r"|(?<![\w.])\d+(?:\.0)?(?![\w.])"
)
_NO_CODE = re.compile(r'//[^\n]*|"[^"\n]*"|^#[^\n]*|\btemplate <[^>]*>', re.MULTILINE)


def changes(source: str) -> Iterator[Change]:
    """All changes of the source, in its order; some do not compile."""
    code = _NO_CODE.sub(lambda found: "\0" * len(found[0]), source)
    for found in _TOKEN.finditer(code):
        before = found[0]
        after = _TOKENS.get(before) or (f"{int(before[:-2]) + 1}.0" if before.endswith(".0") else str(int(before) + 1))
        line = source.count("\n", 0, found.start()) + 1
        text = source[source.rfind("\n", 0, found.start()) + 1 : source.find("\n", found.end())].strip()
        yield Change(
            line, f"{before.strip()} in {text}", after.strip(), source[: found.start()] + after + source[found.end() :]
        )
