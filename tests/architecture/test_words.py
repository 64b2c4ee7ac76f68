"""Plain words: a request is "it" and "which", and where the field has a term, the code uses it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# On small letters and without \b in front, it is found three times as fast.
OLD = re.compile(
    r"(?:somebody|anybody|everybody|nobody|whom|whoever|sits? out|sitting out|stands? back|strangers?"
    r"|evicts?|evict_\w+|eviction|evictionrule|eviction_columns)\b"
)
KEPT = "(request eviction)"
"""QLM's own name for it."""


@pytest.mark.slow
def test_code_says_preempted_paused_and_untracked_and_takes_requests_for_no_persons() -> None:
    """Names that others read stay: ``evictions`` of a report counts all preemptions, that among the counters of
    result.json those of the policy; the outcome ``evicted`` (given up after queueing) is no preemption.
    """
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / "sloserve").rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if OLD.search(line.lower()) and KEPT not in line
    ]
    assert found == []


def test_the_pattern_finds_the_old_words() -> None:
    for line in ("the others sit out", "serves whoever is first", "rule = EvictionRule()", "evict: bool = True"):
        assert OLD.search(line.lower()), line
    for line in ('counters["evictions"]', '"evicted_s": mean', "raise Evicted(text)"):
        assert not OLD.search(line.lower()), line
