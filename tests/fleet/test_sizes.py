"""Numbers in bodies, which gateway and batches read as the engine does that gets them."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from sloserve.core.errors import InvalidRequest
from sloserve.fleet.batch_api.lines import ENDPOINTS
from sloserve.fleet.sizes import GENERATING, MOST_REPLIES, output_limit, replies

CHAT = GENERATING[0]
VALUES = (None, 1, 2, 2.0, "2", " 2 ", "2.0", True, 2.5, "x", "", [], {}, False, 0, -1, float("nan"), float("inf"))


class Stated(BaseModel):
    """``n`` as in vLLM's ``ChatCompletionRequest``."""

    n: int | None = 1


@pytest.mark.parametrize("n", [*VALUES, MOST_REPLIES, MOST_REPLIES + 1, "9" * 5000, 10**400], ids=lambda n: repr(n)[:9])
def test_n_is_what_vllm_takes_it_for_and_what_it_refuses_is_refused(n: Any) -> None:
    try:
        read = Stated(n=n).n
    except ValidationError:
        read = 0
    if read is None or 1 <= read <= MOST_REPLIES:
        assert replies(n, CHAT) == (read or 1)
    else:
        with pytest.raises(InvalidRequest, match=r"^n: .{1,90} is not a whole number of 1 to 16384$"):
            replies(n, CHAT)


def test_n_means_nothing_to_what_generates_nothing() -> None:
    assert [route for route in ENDPOINTS if route not in GENERATING] == ["/v1/embeddings"]
    for route in ("/v1/embeddings", "/tokenize"):
        assert {replies(n, route) for n in VALUES} == {1}


@pytest.mark.parametrize(("stated", "tokens"), [("100", 100), (100.0, 100), (True, 1), (2**31, None), ("x", None)])
def test_a_limit_is_read_as_leniently(stated: Any, tokens: int | None) -> None:
    assert output_limit(stated) == output_limit(None, stated) == tokens
