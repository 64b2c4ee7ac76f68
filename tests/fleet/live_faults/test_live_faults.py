"""Parts of a fleet are replaced in order under load, and its tenants do not notice; see ``__main__.py``."""

from pathlib import Path

import pytest

from tests.fleet.live_faults.__main__ import parsed, report


@pytest.mark.slow
@pytest.mark.whole
def test_tenants_do_not_notice_an_upgrade_of_all_parts(tmp_path: Path) -> None:
    found = report(parsed(["--only-upgrades", "--minutes", "0.4", "--tenants", "8", "--every-s", "2"]), tmp_path)
    assert found["faults"] == [] and found["processes_left"] == [] and found["lines_open"] == 0
    assert found["engines_kept"] and found["events"] >= 4
    wrong = {what: count for what, count in found["ended"].items() if "right" not in what and what != "batch accepted"}
    assert not wrong and found["ended"]["stream right"] > 10
