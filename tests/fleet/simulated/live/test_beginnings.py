"""What a gateway in virtual time knows of a prompt."""

from sloserve.core.request import OUTPUT_ID, WorkloadRequest
from sloserve.fleet.simulated.dispatcher import waiting_request
from sloserve.fleet.simulated.live.simulated_gateway import beginnings_of
from tests.fleet.simulated.fleets import request


def prompt(tokens: int, *ids: int, block: int = 16) -> WorkloadRequest:
    made = request("x", "a", 0.0, prompt_tokens=tokens, prefix_ids=ids)
    return WorkloadRequest(
        made.request_id, 0.0, tokens, 8, made.slo, model="a", prefix_ids=ids, prefix_block_tokens=block
    )


def test_prompts_are_cut_each_512_tokens_and_at_their_end_and_may_repeat_outputs() -> None:
    first = beginnings_of(waiting_request(prompt(16 * 70, *range(70))))
    assert [one.tokens for one in first] == [512, 1024, 1120]
    again = beginnings_of(waiting_request(prompt(16 * 96, *range(70), *[OUTPUT_ID] * 26)))
    assert [one.tokens for one in again] == [512, 1024, 1536]
    assert again[:2] == first[:2] and again[2].digest != first[2].digest
    assert [one.tokens for one in beginnings_of(waiting_request(prompt(600, 1, 2, block=512)))] == [512, 600]
    assert beginnings_of(waiting_request(prompt(600))) == ()
