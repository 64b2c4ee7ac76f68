"""Names of the facts that compiled code takes, and figures of an engine."""

STATED = ("arrival_s", "ttft_s", "tpot_s", "tds", "e2e_s", "first_token_s")
COUNTED = ("class_rank", "prompt_tokens", "output_tokens", "max_tokens")
PROGRESS = ("prompt_tokens", "output_tokens", "computed_tokens", "swapped_tokens", "hit_tokens")
REPLY = ("now_s", "ttft_s", "tds", "left_tokens", "prefill_s", "first_token_s")
ENGINE = {
    "step_s": 0.02,
    "full_s": 0.1,
    "prompt_token_s": 5e-5,
    "token_s": 1e-4,
    "step_wait_s": 0.15,
    "kv_blocks": 50_000.0,
    "seats": 64.0,
    "wait_share": 0.2,
    "late_wait_share": 5.0,
    "late_at": 0.25,
    "reader_ttft_s": 1.0,
    "reader_tds": 4.8,
    "experience": 0.5,
    "stretch": 0.1,
    "unhurried_s": 600.0,
    "price_power": 2.0,
    "tail": 1.5,
}
"""The facts that gains and costs are judged by."""
