"""Names that were probably meant."""

from sloserve.core.nearest import did_you_mean, nearest

KNOWN = ("edf", "priority", "Chat")


def test_case_does_not_count_and_the_name_is_spelt_as_it_is_known() -> None:
    assert nearest("EDF", KNOWN) == "edf" and nearest("chat", KNOWN) == "Chat"
    assert nearest("PRIORTY", KNOWN) == "priority" and nearest("xyz", KNOWN) is None
    assert nearest("edff", KNOWN, cutoff=0.95) is None and nearest(5, KNOWN) is None


def test_a_message_asks_only_where_a_name_is_near() -> None:
    assert did_you_mean("Edff", KNOWN) == "; did you mean 'edf'?" and did_you_mean("xyz", KNOWN) == ""
