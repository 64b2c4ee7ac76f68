"""Published results are made anew by their own commands, and stay as they are where these fail."""

import sys
from pathlib import Path

import pytest

from benchmarks.publish import RESULTS, RUNS, load_text, save_text
from benchmarks.republish import Published, make_anew, printed_table, published


def test_a_command_writes_to_a_folder_of_its_own_with_this_interpreter() -> None:
    of = {one.folder.name: one.arguments(Path("there")) for one in published(RESULTS)}
    assert len(of) > 50
    for name, words in of.items():
        assert words[0] == sys.executable and words[words.index("--out") + 1] == "there", name
        assert ("--jobs" in words) is ("simulate" in words) and "OUT" not in words, name


def test_of_several_commands_none_is_run(tmp_path: Path) -> None:
    for name, lines in {
        "one": ("# Commit abc, as it is", "sloserve simulate --load 1 --out OUT", "# what it means"),
        "two": ("# Commit abc", "sloserve simulate --load 1 --out OUT", "sloserve simulate --load 2 --out OUT"),
        "other": ("# Commit abc", "python -m benchmarks.policies.sa_paper"),
        "unknown": ("# of some day", "sloserve simulate --out OUT"),
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "command.txt").write_text("\n".join(lines) + "\n")
    (found,) = published(tmp_path)
    assert (found.folder.name, found.commit, found.remarks) == ("one", "abc", ("# what it means",))


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_files_are_replaced_unless_the_command_fails(tmp_path: Path, fails: bool) -> None:
    code = f"""import sys
from pathlib import Path
for name in ("runs.csv", "a.png", "b.png"):
    Path(sys.argv[2], name).write_text("new")
print("wrote runs.csv")
print("table")
sys.exit({int(fails)})
"""
    script = tmp_path / "script.py"
    script.write_text(code)
    folder = tmp_path / "one"
    folder.mkdir()
    for name in (RUNS, "a.png", "table.txt", "command.txt"):
        save_text(folder / name, "old")
    said = make_anew(Published(folder, f"python {script} --out OUT", ("# more",), "abc"), "def", "1.0")
    assert (" FAILED " in said) is fails
    assert {path.name for path in folder.iterdir()} == {RUNS, "a.png", "table.txt", "command.txt"}
    if fails:
        assert {load_text(path) for path in folder.iterdir()} == {"old"}
    else:
        assert [load_text(folder / name) for name in (RUNS, "a.png", "table.txt")] == ["new", "new", "table\n"]
        head, *rest = (folder / "command.txt").read_text().splitlines()
        assert head.startswith("# Commit def, engine model of vLLM 1.0, ")
        assert rest == [f"python {script} --out OUT", "# more"]


def test_a_table_is_what_is_printed_but_for_progress_and_files() -> None:
    log = "requests: 1 of 9\rrequests: 9 of 9\n\na on b\n\n  x  1  \n  y  2\nwrote runs.csv\n"
    assert printed_table(log) == "a on b\n\n  x  1\n  y  2\n"
