"""Request bodies as Hypothesis strategies: JSON written in every way that Python reads, and what is nearly JSON."""

from collections.abc import Sequence

from hypothesis import strategies as st

from sloserve.wire.body import NESTED

NAMES = ("slo", "slo", "slo", "service_tier", r"\u0073lo", "slo ", "x", r"\ud800")
NESTED_NAMES = (*NESTED, *NESTED, *NESTED, "report", r"\u0074ds", "y")
SCALARS = (
    "5", "0", "-0", "-1", "2.5", "1E5", "1e999", "-1e999", "0.1e-400", "5e-324", "NaN", "Infinity", "-Infinity",
    "1" * 40, "18446744073709551616", "123456789012345678901234567890.5", "null", "true", "false", "[" * 50 + "]" * 50,
    '"batch"', '"5"', '""', r'"\u0062atch"', r'"\ud83d\ude00"', r'"\ud800"', r'"\ude00"', r'"\ud800\u0041"',
    r'"\ud800\\"', '"\ud800"', r'"\u0000"', '"é \U0001f600"', r'"{\"slo\": 1}"',
)  # fmt: skip
SPACE = ("", "", " ", "\n\t ")
ENCODINGS = ("utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32")

WRONG_SCALARS = ("1" * 4301, "01", "1.", "0x5", "nul", '"\u0000"', '"\t"', r'"\x"', "'5'", "[" * 2000, "{}}")
WRONG_SPACE = ("\x0b", "\ufeff", "/**/", ",")


def _objects(names: Sequence[str], values: st.SearchStrategy[str], space: Sequence[str]) -> st.SearchStrategy[str]:
    gap = st.sampled_from(space)
    entry = st.builds(lambda name, a, value, b: f'{a}"{name}"{b}:{a}{value}', st.sampled_from(names), gap, values, gap)
    return st.lists(entry, max_size=4).map(lambda entries: "{" + ",".join(entries) + "}")


def _texts(scalars: Sequence[str], space: Sequence[str]) -> st.SearchStrategy[str]:
    scalar = st.sampled_from(scalars)
    lists = st.lists(scalar, max_size=3).map(lambda items: "[" + ",".join(items) + "]")
    slo = _objects(NESTED_NAMES, scalar | lists, space)
    return _objects(NAMES, slo | slo | slo | lists | scalar, space)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A body: as a rule an object that states an SLO, at times with something wrong in it, at times no JSON at all."""
    kind = draw(st.integers(0, 11))
    if kind == 0:
        return draw(st.binary(max_size=200))
    if kind == 1:
        return draw(_texts((*SCALARS, *WRONG_SCALARS), (*SPACE, *WRONG_SPACE))).encode("utf-8", "surrogatepass")
    text = draw(st.sampled_from(SCALARS) if kind == 2 else _texts(SCALARS, SPACE))
    body = bytearray(text.encode(draw(st.sampled_from(ENCODINGS)), "surrogatepass"))
    if kind == 3:
        body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
    return bytes(body)
