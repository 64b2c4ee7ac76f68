"""The check for plain English finds what it is for, and leaves plain sentences alone."""

import textwrap
from pathlib import Path

import pytest

from tests.plain_english.__main__ import findings_in, main
from tests.plain_english.grammar import has_main_verb
from tests.plain_english.parameters import written
from tests.plain_english.prose import Kind, Prose, prose_of
from tests.plain_english.rules import findings
from tests.plain_english.same_code import without_docstrings


def rules_in(source: str) -> list[str]:
    """Return the rules that a file of this text breaks, in the order in which they are found.

    Args:
        source: the text of the file, indented as a whole.
    """
    return [each.rule for prose in prose_of(textwrap.dedent(source)) for each in findings(prose)]


@pytest.mark.parametrize(
    "line",
    [
        "Returns the mean.",
        "The mean.",
        "Whether it runs.",
        "A request of it goes to ``model``.",
        "What a plan costs.",
        "Mean tokens of a step.",
        "Time until the next step.",
        "Raises: ConfigError for a cap out of range.",
    ],
)
def test_a_functions_first_line_begins_with_a_verb_in_the_imperative(line: str) -> None:
    assert rules_in(f'def of(value):\n    """{line}"""\n') == ["imperative"]


@pytest.mark.parametrize(
    "line", ["Return the mean.", "Record ``size`` response bytes as written.", "Raise ConfigError."]
)
def test_an_imperative_sentence_is_plain(line: str) -> None:
    assert rules_in(f'def of(value):\n    """{line}"""\n') == []
    assert rules_in(f'async def of(value):\n    """{line}"""\n') == []


@pytest.mark.parametrize("decorator", ["property", "functools.cached_property", "value.setter"])
def test_a_property_names_the_thing(decorator: str) -> None:
    assert (
        rules_in(f'class A:\n    @{decorator}\n    def of(self):\n        """Share of blocks in use, 0..1."""\n') == []
    )


@pytest.mark.parametrize(
    "line",
    [
        "It is not of the form that its route reads.",
        "As its agent states.",
        "Until a place is free.",
        "One request's.",
        "How long is it?",
    ],
)
def test_a_class_or_attribute_does_not_begin_in_the_middle(line: str) -> None:
    assert set(rules_in(f'class A:\n    """{line}"""\n')) & {"opening", "fragment"}
    assert set(rules_in(f'MOST = 3\n"""{line}"""\n')) & {"opening", "fragment"}


@pytest.mark.parametrize(
    "sentence",
    [
        "So many requests wait here.",
        "The model is that of the paper.",
        "Slots for those that have begun.",
        "A request whose deadline has passed.",
        "The client is told.",
        "Of each group, how late it is.",
        "Who comes first is served first.",
        "What befell the request.",
        "Both are served by turns.",
        "The door of the agent.",
    ],
)
def test_phrases_of_the_old_dialect_are_found_in_all_prose(sentence: str) -> None:
    for kind in Kind:
        assert "phrase" in {each.rule for each in findings(Prose(kind, 1, sentence))}, kind


def test_names_of_code_are_no_prose() -> None:
    assert rules_in('"""Endpoints of agents, ``door`` in code; see :class:`InstanceEndpoint` and ``told``."""\n') == []


@pytest.mark.parametrize(
    "sentence",
    [
        "Whatever its devices are.",
        "Not for several threads.",
        "What it would have taken.",
        "To be ended.",
        "Requests that have ended, and are due.",
        "In the order in which they came.",
    ],
)
def test_a_fragment_has_no_main_verb(sentence: str) -> None:
    assert not has_main_verb(sentence)
    assert rules_in(f'"""Times of requests.\n\n{sentence}\n"""\n') == ["fragment"]


@pytest.mark.parametrize(
    "sentence",
    [
        "Nothing here changes what is decided.",
        "A step that computes no prompt takes 5 ms.",
        "Times that were stamped with the host's clock come in through X.",
        "Call it exactly once.",
        "If the pool is full, drop the oldest block.",
        "The queue drains.",
        "Requests wait until a block is free.",
        "So a process writes only while it has the lock.",
    ],
)
def test_a_whole_sentence_has_a_main_verb(sentence: str) -> None:
    assert has_main_verb(sentence)


def test_a_parameter_is_described_under_args_by_a_whole_phrase() -> None:
    first_line = 'def of(tokens):\n    """Return the blocks. tokens: of the prompt."""\n'
    own_line = 'def of(tokens):\n    """Return the blocks.\n\n    tokens: of the prompt.\n    """\n'
    fragment = 'def of(tokens):\n    """Return the blocks.\n\n    Args:\n        tokens: of the prompt.\n    """\n'
    plain = 'def of(tokens):\n    """Return the blocks.\n\n    Args:\n        tokens: Tokens of the prompt.\n    """\n'
    assert rules_in(first_line) == ["parameter"]
    assert rules_in(own_line) == ["parameter"]
    assert rules_in(fragment) == ["form", "opening"]
    assert rules_in(plain) == []
    assert rules_in('class A:\n    """A pool. size: in blocks."""\n    size: int\n') == ["parameter"]


@pytest.mark.parametrize(
    ("description", "form"),
    [
        ("tokens of the prompt", "Tokens of the prompt."),
        ("``None`` for none", "``None`` for none."),
        ("vLLM's scheduler.", "vLLM's scheduler."),
        ("max_tokens of the request.", "max_tokens of the request."),
        ("inf for no limit.", "inf for no limit."),
        ("called with x.\n            It returns at once", "Called with x.\n            It returns at once."),
        ("whether it runs (see :func:`of`).", "Whether it runs (see :func:`of`)."),
    ],
)
def test_the_description_of_a_parameter_is_a_capitalised_phrase_with_a_full_stop(description: str, form: str) -> None:
    source = 'def of(tokens):\n    """Return the blocks.\n\n    Args:\n        tokens: {}\n    """\n'
    assert written(source.format(description)) == source.format(form)
    assert rules_in(source.format(description)) == ["form"] * (description != form)
    assert rules_in(source.format(form)) == []


def test_comments_and_messages_are_prose() -> None:
    assert rules_in("# Those of the last step.\nx = 1\n") == ["phrase", "fragment"]
    assert rules_in("x = 1  # whose it is\n") == ["phrase"]
    assert rules_in('raise ValueError(f"the door of {name} is closed")\n') == ["phrase"]
    assert rules_in('log.warning("%s is told to end", name)\n') == ["phrase"]


def test_code_and_tables_in_docstrings_are_no_prose() -> None:
    assert rules_in('"""Names of columns::\n\n    so many of them\n\n| those of | one |\n"""\n') == []


def test_the_place_is_printed_with_the_phrase_and_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "module.py"
    path.write_text('"""Times of requests.\n\nThe model is\nthat of the paper.\n"""\n')
    assert [(each.line, each.rule) for each in findings_in(path)] == [(4, "phrase")]
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines()[0] == f"{path}:4: phrase: 'that of': repeat the noun"
    assert main([str(tmp_path), "--rules", "opening,fragment"]) == 0


def test_a_change_of_docstrings_leaves_the_code_equal() -> None:
    before = '"""A."""\nMOST = 3\n"""B."""\n\n\ndef of():\n    """C."""\n    return "D"  # E\n'
    after = '"""a."""\nMOST = 3\n\n\ndef of():\n    """c.\n\n    d\n    """\n    return "D"\n'
    assert without_docstrings(before) == without_docstrings(after)
    assert without_docstrings(before) != without_docstrings(before.replace("D", "d"))
    assert without_docstrings(before) != without_docstrings(before.replace("3", "4"))
