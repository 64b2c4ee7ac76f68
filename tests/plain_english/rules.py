"""Rules of plain English: whole sentences, first lines that begin with a verb, and no words of a private dialect."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.plain_english.grammar import VERBS, has_main_verb
from tests.plain_english.parameters import is_open, is_small
from tests.plain_english.prose import Kind, Prose

BANNED: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern, re.IGNORECASE), advice)
    for pattern, advice in (
        (r"\bso (?:many|much|few|little|long a|far as may)\b(?! that\b)", "name the number: 'n requests', 'this many'"),
        (r"\bas (?:many|much|few|long|far|often|soon) as may\b", "name the limit"),
        (r"\bthat of\b", "repeat the noun"),
        (
            r"\bthose (?:that|which|of|who|whose|whom|where|for|in|with|to|from|at|on|it|they|by|beside)\b",
            "repeat the noun",
        ),
        (r"^(?:all )?those\b(?= (?:\w+ing|\w+ed|are|were|have|may|can)\b|[.,:;])|^these[.,:;]", "repeat the noun"),
        (r"\b(?:whose|whom)\b", "use 'of which', 'with', or a new sentence"),
        (r"\btold\b|\btells? of\b|\btelling of\b", "use notify, report, state or call"),
        (
            r"^(?:of (?:what|each|which|those|whom|these|all|two|every)|as (?:its|their|the) \w+ \w+\.)",
            "begin with the noun",
        ),
        (r"^(?:at|by|from|in|of|to|with|on|for|until|since) (?:which|when|what|where)\b", "begin with the noun"),
        (r"^answers?\b(?! (?:the|a|an|with|each|only|questions|X)\b)", "use 'response' (HTTP) or 'output' (tokens)"),
        (
            r"\bwho comes\b|(?:^|[.;:]\s)who \w+s\b",
            "name who: the client, the caller, the request",
        ),
        (r"\bbefell\b|\bbefalls?\b|\bbefallen\b", "use 'happened to'"),
        (r"\bby turns\b", "use 'alternately' or 'in turn'"),
        (r"\bdoors?\b", "use 'endpoint', unless the class Door is meant (then write ``InstanceEndpoint``)"),
        (
            r"\b(?:whither|thereof|therein|thereby|wherein|hereby|thence|hence|anew|lest|nought|ere|forthwith|heed|henceforth)\b",
            "old-fashioned word",
        ),
        (r"\b(?:is|are) to be had\b|\bthat is none\b", "say what is missing"),
        (r"\brepl(?:y|ies)\b", "use 'response' (HTTP) or 'output' (tokens)"),
        (
            r"\b(?:the|an|its|no|each|every|this|that|one|of|such|any|whole|first|last) answers?\b",
            "use 'response' (HTTP) or 'output' (tokens)",
        ),
        (
            r"\bfrom when on\b|\bfrom now on\b|\bof late\b|\bin vain\b|\bat a stroke\b|\bat the least(?=[,.;)])",
            "not plain",
        ),
        (
            r"\bwhat it is (?:worth|given|told)\b|\bwhat (?:becomes?|became|comes?) of\b|\bcame? of it\b",
            "name the outcome",
        ),
        (r"\b(?:the|an|no|each|every|with|without|many|few|all) others? of its\b", "repeat the noun"),
        (r"\bas (?:his|its|their) [\w]+ tells?\b", "use 'states' or 'reports'"),
    )
)

OPENERS: Final = re.compile(
    r"(?:So|Those|That|These|Of|Who|Whose|Whom|As|It|They|He|Its|Their|Until|From|By|To|Whatever|Whichever|Which|Where|When|While"
    r"|If|For|With|Without|In|On|At|Before|After|Also|And|But|Or|Not|Never|Nothing|None|There|Then|Once|Since|Though"
    r"|Because|Unless|Beside|Besides|Within|Beyond|Between|Under|Over|Has|Is|Are|Was|Does|May|Can)\b(?!-)"
)
_CLAUSE_FIRST = re.compile(
    r"(?:If|When|While|Where|Before|After|Once|Since|Though|Because|Unless|In|On|At|For|With|Without|From|By|To|There|It|They|That|These|Its|Their|Not|Never|Nothing|None|Then|Also|As|Until|Under|Over|Within|Beyond)\b"
)
_PARAMETER_OPENERS = re.compile(
    r"(?:of|that|those|as|to|by|until|so|from|in|on|at|with|without|for|whose|who|whom|it|its|they|their|beside|besides|has|is|are|was"
    r"|does|may|can|likewise|also|and|or|but|than|within|which|where|while|if|because|such)\b(?!-)",
    re.IGNORECASE,
)

COMMANDS: Final = VERBS - frozenset("amount average cost draft last mean own prompt rank score size step sum".split())
"""Verbs with which the first line of a function begins; the others are nearly always nouns there."""
_NOUN_PHRASE = re.compile(r"\w+ (?:of|at which)\b|Time until\b")
_CODE = re.compile(r"``.+?``|:\w+:`[^`]+`|`[^`]+`|\"[^\"]*\"", re.DOTALL)
_SENTENCE_END = re.compile(
    r"(?<!\be\.g)(?<!\bi\.e)(?<!\bcf)(?<!\bEq)(?<!\bvs)(?<!\bSec)(?<!\bFig)[.!?][)\"]?(?=\s+[\"“(`A-Z:]|\s*$)"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A place where the prose is not plain.

    Args:
        line: the line of the file, from 1.
        phrase: the words that are meant.
        rule: the name of the rule: ``imperative``, ``opening``, ``fragment``, ``phrase``, ``parameter`` or ``form``.
        reason: what is wrong, and what to write.
    """

    line: int
    phrase: str
    rule: str
    reason: str


def findings(prose: Prose) -> Iterator[Finding]:
    """Yield what is not plain in a piece of prose.

    Args:
        prose: the docstring part, comment or message to judge.
    """
    text = _CODE.sub(lambda found: "X" + "\n" * found[0].count("\n"), prose.text)
    for pattern, advice in BANNED:
        for found in pattern.finditer(text):
            yield Finding(_line(prose, text, found.start()), found[0], "phrase", advice)
    if prose.kind in (Kind.MESSAGE, Kind.TRAILING):
        return
    yield from _parameters_in_prose(prose, text)
    if prose.kind is Kind.PARAMETER and (is_small(prose.text) or is_open(prose.text)):
        advice = "write 'name: Capitalised whole phrase.'; python -m tests.plain_english.parameters FILE does"
        yield Finding(prose.line, _shortened(prose.text), "form", advice)
    offset = 0
    for number, sentence in enumerate(_sentences(text)):
        place = _line(prose, text, text.index(sentence, offset))
        offset = text.index(sentence, offset) + len(sentence)
        found = _judged(prose, " ".join(sentence.split()), number)
        if found is not None:
            rule, reason = found
            yield Finding(place, _shortened(sentence), rule, reason)


def _line(prose: Prose, text: str, offset: int) -> int:
    return prose.line + text.count("\n", 0, offset)


def _shortened(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 70 else words[:67] + "..."


def _sentences(text: str) -> list[str]:
    found, start = [], 0
    for end in _SENTENCE_END.finditer(text):
        found.append(text[start : end.end()].strip())
        start = end.end()
    rest = text[start:].strip()
    return [each for each in [*found, rest] if re.search(r"\w", each)]


def _parameters_in_prose(prose: Prose, text: str) -> Iterator[Finding]:
    """Yield parameters that are described outside of a section ``Args:``, where D417 does not see them."""
    if prose.kind is Kind.PARAMETER:
        return
    for name in prose.parameters:
        found = re.search(rf"(?:^|[.;]\s+|\n){re.escape(name)}: ", text)
        if found:
            yield Finding(_line(prose, text, found.start()), f"{name}:", "parameter", "describe it under 'Args:'")


def _judged(prose: Prose, sentence: str, number: int) -> tuple[str, str] | None:
    """Return the rule that a sentence breaks and why, or ``None`` for a plain one."""
    first = re.match(r"[\w'-]*", sentence)
    word = first[0] if first else ""
    if prose.kind is Kind.FUNCTION and number == 0:
        if word.lower() in COMMANDS and not word.isupper() and not _NOUN_PHRASE.match(sentence):
            return None
        return "imperative", "begin with a verb in the imperative ('Return', 'Record', 'Raise')"
    if prose.kind is Kind.NAMING and number == 0:
        if sentence.endswith("?"):
            return "opening", "state what it is instead of asking"
        if not OPENERS.match(sentence) or (_CLAUSE_FIRST.match(sentence) and _opens_sentence(sentence)):
            if re.search(r"'s?[.:]$", sentence) or re.match(r"\w+: that\b", sentence):
                return "fragment", "a possessive or a relative clause without its noun"
            return None
        return "opening", f"begin with the noun that is meant, not with '{word}'"
    if prose.kind is Kind.PARAMETER:
        if number == 0 and _PARAMETER_OPENERS.match(sentence):
            return "opening", f"begin with the noun that is meant, not with '{word}'"
        return None
    if prose.kind is Kind.ITEM:
        return None
    if any(sentence.startswith(f"{name}: ") for name in prose.parameters):
        return None
    words = len(re.findall(r"\w+", sentence))
    if prose.kind is Kind.COMMENT and (
        words < 4 or re.search(r"[=\[\]{}|]|->", sentence) or not sentence.endswith(".")
    ):
        return None
    if re.match(
        r"\(?(?:Raises?|Returns?|Yields?|Sources?|Differs|Eq|Example|Usage|See|Guarantees?|Deterministic)\b", sentence
    ):
        return None
    if sentence.endswith(":") or words < 2 or " = " in sentence:
        return None
    if prose.kind is Kind.COMMENT and number == 0 and not OPENERS.match(sentence):
        return None  # a comment may name what the next line defines
    return None if has_main_verb(sentence) else ("fragment", "no verb in the main clause")


def _opens_sentence(sentence: str) -> bool:
    """Return whether an opening that could begin a fragment begins a sentence with a subject and a verb here."""
    if re.match(r"(?:It|They|That|These|Those|Its|Their|Nothing|None|As|Until|Not|Never|Also|Then)\b", sentence):
        return bool(re.match(r"(?:None of|Nothing|Not |No )", sentence)) and has_main_verb(sentence)
    return has_main_verb(sentence)
