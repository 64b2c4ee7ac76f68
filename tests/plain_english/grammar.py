"""A rough grammar of English: whether a sentence has a finite verb outside of its subordinate clauses.

It knows lists of words and looks at neighbours, no more. Where it cannot decide it takes a sentence for whole.
"""

import re
from pathlib import Path
from typing import Final

VERBS: Final = frozenset((Path(__file__).with_name("verbs.txt")).read_text().split())
"""Base forms of the verbs with which the first line of a function may begin. Add what is missing."""


def _third_person(verb: str) -> str:
    if verb.endswith(("s", "x", "z", "ch", "sh", "o")):
        return f"{verb}es"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return f"{verb[:-1]}ies"
    return f"{verb}s"


_AUXILIARIES: Final = frozenset(
    """
    is are was were has have had does do did can cannot could may might must shall should will would isn't
    aren't wasn't weren't hasn't haven't hadn't doesn't don't didn't can't couldn't mustn't shouldn't won't
    wouldn't it's that's there's
    """.split()
)
_MODALS: Final = frozenset(
    """
    does do did can cannot could may might must shall should will would to doesn't don't didn't can't couldn't
    mustn't shouldn't won't wouldn't let lets
    """.split()
)
_PASTS: Final = frozenset(
    """
    came went took began ran saw gave found left made held kept sent met got fell knew lost paid led became grew
    wrote chose broke drew drove ended arrived started stopped waited asked failed stated wanted used happened
    said meant stood told thought
    """.split()
)
_SUBORDINATORS: Final = frozenset(
    """
    that which who whom what where when whether if while until because whose how why unless though although once
    whatever whoever whichever wherever since before after as so
    """.split()
)
_WEAK: Final = frozenset("since before after as so once".split())
"""They begin a clause only before a subject."""
_PREPOSITIONS: Final = frozenset("of in to by from with for at on than after and ,".split())
"""Behind them ``that`` begins no clause."""
_SUBJECTS: Final = frozenset(
    """
    it they we you he the a an its their this these those one x each all both no every some nobody nothing
    everything any others
    """.split()
)
_NUMERALS: Final = frozenset("one all both each".split())
_SINGULAR: Final = frozenset("it he each every no one another nothing nobody everything this neither either".split())
"""Subjects behind which a verb ends in s."""
_PRONOUNS: Final = _SUBJECTS - {"the", "a", "an", "its", "their", "no", "every", "any"} | frozenset(
    """
    two three four five six seven eight nine ten many that which who what there another itself themselves either
    neither none i most vllm python linux prometheus nvidia
    """.split()
)
_DETERMINERS: Final = frozenset("the a an its their each every no this that another any one our".split())
_PARTICIPLE_BEHIND: Final = frozenset("is are was were be been has have had the a".split())
_ADVERBS: Final = frozenset(
    """
    not also here still never always only then now already yet just so too even again ever thus both all alone
    often once mostly usually therefore however itself themselves
    """.split()
)
_PLAIN_VERBS: Final = frozenset(
    """
    come go begin become arrive bring give get take keep know make need read write serve send receive hold lose
    mean add apply belong leave say see seem want use run wait end depend happen remain follow contain carry
    cause count put die stay
    """.split()
)
"""Plural forms that are rarely nouns; they count as main verbs behind a clause that follows the subject."""
_THIRD: Final = {_third_person(verb) for verb in VERBS}
# Plurals that are more often nouns here: they count as verbs only behind a subject in the singular.
_NOUNS: Final = frozenset(
    """
    accounts ages amounts answers averages backs balances blocks bounds breaks builds calls causes changes
    charges checks claims commands controls copies costs counts crashes cuts deals delays demands differs
    documents drafts draws ends estimates exits faults figures fills files filters forms formats gains groups
    guards hands hashes helps hints hits holds imports increases issues jumps keys labels lays leads leases
    levels lies limits links lists lives loads locks logs looks loops marks masks matches means measures misses
    models moves names needs notes notices offers orders owns pages parts passes pauses pins places plans plots
    points polls prices prints probes processes profiles promises prompts queries queues ranges ranks rates
    records releases reports requests reserves rests results retries returns rises rounds routes runs samples
    scales scans schedules scores searches sets shadows shapes shares shifts shows signals signs sizes sleeps
    sorts spans splits spreads stands starts states steps stops stores streams sums swaps sweeps switches takes
    targets tests ticks ties times totals traces tracks trains transfers tries triggers trips turns updates uses
    values views visits votes waits walks watches wins works wraps yields
    """.split()
) - frozenset("means needs owns takes holds differs lies leads lays tries shows returns wraps yields".split())

_TOKEN = re.compile(r"[A-Za-z][\w'-]*|[,;:().!?]|\d[\w.%/-]*|[^\s\w]")


def has_main_verb(sentence: str) -> bool:
    """Return whether a sentence seems to have a finite verb outside of its subordinate clauses.

    Args:
        sentence: words in which names of code have been replaced by ``X``.
    """
    tokens = [token if token == "X" else token.lower() for token in _TOKEN.findall(sentence)]
    pending, last_was_subordinate = 0, False
    for position, token in enumerate(tokens):
        before = tokens[position - 1] if position else "."
        following = tokens[position + 1] if position + 1 < len(tokens) else "."
        if token in ",;:().-–":
            if token in ";:)." or not (following in ("and", "or", "but") and last_was_subordinate):
                pending = 0
            elif position + 2 < len(tokens) and _is_finite(tokens, position + 2):
                pending = 1
            continue
        if token in _SUBORDINATORS and _begins_clause(token, before, following, position):
            pending, last_was_subordinate = pending + 1, False
        elif _is_finite(tokens, position) or (last_was_subordinate and token in _PLAIN_VERBS and before != "to"):
            if not pending:
                return True
            pending, last_was_subordinate = pending - 1, True
    return False


def _begins_clause(token: str, before: str, following: str, position: int) -> bool:
    if token == "that":
        return position > 0 and before not in _PREPOSITIONS
    if token == "so" and not position:
        return False
    if token in _WEAK:
        return before != "such" and following in _SUBJECTS or following.lower() == "x"
    return following not in ("any", "possible", "needed", "known", "necessary", "not", ",", ")", ".")


def _is_plural(word: str) -> bool:
    return word.endswith("s") and len(word) > 3 and not word.endswith(("ss", "'s", "us", "is"))


def _is_finite(tokens: list[str], position: int) -> bool:
    token = tokens[position]
    previous = [each for each in tokens[max(0, position - 4) : position] if each not in _ADVERBS]
    before = previous[-1] if previous else "."
    following = tokens[position + 1] if position + 1 < len(tokens) else "."
    if before in _MODALS:
        return False
    if token in _AUXILIARIES:
        return before not in _AUXILIARIES
    if token in _THIRD:
        if token not in _NOUNS:
            return before not in ("the", "a", "an", "of", "and its", "their", "its")
        singular = not before.endswith("s") and (position == 1 or not {*previous[:-1]}.isdisjoint(_DETERMINERS))
        has_object = following in _SUBJECTS - _NUMERALS and before not in _PREPOSITIONS - {"and", ","}
        return before in _PRONOUNS or before == "X" or singular or has_object
    if token in VERBS:
        begins = before in (".", ",", ":", ";", "(", "and", "or", "please") and token not in ("one",)
        plural = _is_plural(before) or (token in _PLAIN_VERBS and before != "to" and any(map(_is_plural, previous)))
        both = before == "X" and "and" in previous
        return begins or plural or both or before in _PRONOUNS - _SINGULAR
    if token in _PASTS or (token.endswith("ed") and len(token) > 4):
        acts = token in _PASTS and not token.endswith("ed")  # "went" is no participle
        acts_on_something = following in _DETERMINERS
        by_subject = before in _PRONOUNS - {"all", "both", "one", "each", "others", "x"}
        return by_subject or ((acts or acts_on_something) and before not in _PARTICIPLE_BEHIND)
    return False
