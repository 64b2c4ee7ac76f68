"""A reader's questions are answered within two clicks of the README."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, anchors, links

README = ROOT / "README.md"
CLICKS = 2
ANSWERS = {
    "How do I add this to my vllm serve with TP=8?": (
        "docs/existing-vllm.md#two-flags",
        ("--tensor-parallel-size 8", "--scheduler-cls sloserve.vllm_plugin.SLOScheduler", "SLOMiddleware"),
    ),
    "What do I send?": ("docs/slos-on-the-wire.md#names", ("x-slo-ttft-ms", "slo_ttft_ms", "x-slo-class")),
    "What happens under overload?": ("docs/serve.md#overload", ("429", "Retry-After", "--admission cap")),
    "Which policy?": ("README.md#choose-a-policy", ("Begin with `auto`", "choose it if")),
    "What does it cost?": ("README.md#when-it-helps-and-what-it-costs", ("tokens/s", "first token", "It can lose")),
}
"""By question the place of its answer, and what the section must contain."""


def places_within(clicks: int) -> set[str]:
    """Return the pages and anchors that a reader of the README reaches by at most ``clicks`` links."""
    reached, new = {"README.md"}, {README}
    for _ in range(clicks):
        followed: set[Path] = set()
        for page in new:
            for link in links(page):
                name, _, anchor = link.partition("#")
                target = (page.parent / name).resolve() if name else page
                place = str(target.relative_to(ROOT))
                reached |= {place, f"{place}#{anchor}"} if anchor else {place}
                if target.suffix == ".md":
                    followed.add(target)
        new = followed
    return reached | {f"README.md#{anchor}" for anchor in anchors(README)}


def section(place: str) -> str:
    """Return the text below the heading of a page with this anchor, up to the next heading of its level."""
    name, _, anchor = place.partition("#")
    text = (ROOT / name).read_text()
    for found in re.finditer(r"^(#+) (.+)$", text, re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", found[2].lower()).replace(" ", "-")
        if plain == anchor:
            rest = text[found.end() :]
            end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
            return rest[: end.start()] if end else rest
    raise AssertionError(f"{name} has no heading with the anchor {anchor}")


@pytest.mark.slow
@pytest.mark.parametrize("question", ANSWERS)
def test_a_question_is_answered_within_two_clicks(question: str) -> None:
    place, contents = ANSWERS[question]
    assert place in places_within(CLICKS)
    assert [text for text in contents if text not in section(place)] == []


def test_every_page_is_within_two_clicks() -> None:
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")}
    benchmarks = {page for page in pages if page.startswith("docs/benchmarks/")}
    assert pages - benchmarks - places_within(CLICKS) == set()


def test_the_first_screen_has_commands_flags_and_figures() -> None:
    screen = "\n".join(README.read_text().splitlines()[:60])
    wanted = ("make serve", "make test", "--scheduler-cls", "--middleware", "H100", "<!-- figures -->")
    assert [text for text in wanted if text not in screen] == []
