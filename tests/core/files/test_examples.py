"""The example files: listed, copied, never over what is there."""

from pathlib import Path

import pytest

from sloserve.core.errors import ConfigError
from sloserve.core.files.examples import copied, examples, purpose


def test_each_example_of_settings_says_what_it_is_for() -> None:
    found = examples()
    assert {"serve.yaml", "grafana/sloserve.json", "fleet-tiny.yaml"} <= found.keys()
    assert [name for name, path in found.items() if name.endswith((".yaml", ".sh")) and not purpose(path)] == []


def test_copies_keep_their_folders_and_are_never_laid_over_files(tmp_path: Path) -> None:
    copies = copied(["serve.yaml", "grafana/sloserve.json"], tmp_path / "new")
    assert [path.relative_to(tmp_path / "new").as_posix() for path in copies] == ["serve.yaml", "grafana/sloserve.json"]
    assert copies[0].read_bytes() == examples()["serve.yaml"].read_bytes()
    with pytest.raises(ConfigError, match="sloserve.json exists already and is not overwritten"):
        copied([], tmp_path / "new")
    assert not (tmp_path / "new" / "fleet.yaml").exists()


@pytest.mark.parametrize("name", ["nothing.yaml", "../pyproject.toml", ""])
def test_a_name_that_is_none_is_told_with_those_that_are(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no example .*; there are: .*serve.yaml"):
        copied([name], tmp_path)
