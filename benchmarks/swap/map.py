"""Where does swapping a preempted request's KV take less of the engine's time than computing it again?

Context x hardware x link, from the profiles alone; nothing is run. The rule is the engine's own
(:mod:`sloserve.lso.swapping`), for two victims. One *runs on at once*: the copies to the host and back count in full,
as engine time. One *waits anyway* for longer than they take: what is left is packing, and what staging memory does not
hold. Beside either run ``DECODES`` requests with ``CONTEXT`` tokens each; nothing else is on the link.

Writes table.txt to the folder ``--out``.

    python -m benchmarks.swap.map [--out benchmarks/results/swap-map]
"""

import numpy as np

from benchmarks.arguments import parser_for
from benchmarks.publish import RESULTS, aligned, write_table
from sloserve.core.kernels.kv_layout import KVLayout
from sloserve.estimator.step_time.latency import StepLoad
from sloserve.estimator.step_time.profile import Profile, load_profile, profile_names
from sloserve.lso.plan import EngineFacts, SwapFacts
from sloserve.lso.swapping import recompute_s, swap_s

DECODES, CONTEXT = 64, 500
LINKS = (1.0, 0.5, 0.2, 0.1)
SHOWN = (512, 2048, 8192)
WAITS_S = {"runs on at once": 0.0, "waits anyway": 1e6}
NOTHING = "-"
"""In the table: the model's context is shorter."""


def engine_of(profile: Profile, link: float, wait_s: float) -> EngineFacts:
    swap = SwapFacts(
        block_bytes=profile.kv_bytes_per_token * profile.block_size,
        total_blocks=profile.kv_blocks,
        free_blocks=profile.kv_blocks,
        bytes_per_s=1e9 * profile.link_bandwidth_gb_per_s * link,
        wait_s=wait_s,
    )
    return EngineFacts(
        free_blocks=0,
        total_blocks=profile.kv_blocks,
        layout=KVLayout.full(profile.block_size),
        max_num_seqs=profile.max_num_seqs,
        token_budget=profile.max_num_batched_tokens,
        free_slots=0,
        step_latency=profile,
        swap=swap,
    )


def advantage(tokens: int, engine: EngineFacts) -> float:
    """Engine time of computing again over that of swapping; above 1 swapping wins."""
    assert engine.swap is not None
    running = StepLoad(decode_seqs=DECODES, decode_context_tokens=DECODES * CONTEXT)
    return recompute_s(tokens, running, engine) / swap_s(tokens, engine.layout, engine.swap)


def wins_from(profile: Profile, engine: EngineFacts) -> int | None:
    """The least context, in whole blocks, from which on swapping wins up to the longest; ``None`` for none."""
    size = profile.block_size
    longest = profile.max_model_len // size
    coarse = np.unique(np.geomspace(1, longest, 100).astype(int)).tolist()
    loses = [blocks for blocks in coarse if advantage(blocks * size, engine) <= 1.0]
    if not loses:
        return size
    if loses[-1] == longest:
        return None
    beyond = coarse[coarse.index(loses[-1]) + 1]
    return size * next(b for b in range(loses[-1] + 1, beyond + 1) if advantage(b * size, engine) > 1.0)


def table() -> str:
    head = ["profile", "link GB/s", "swap wins from"]
    head += [f"{name}, {tokens:,}" for name in WAITS_S for tokens in SHOWN]
    rows = [head]
    for name in profile_names():
        profile = load_profile(name)
        if profile.kv_cache is not None:
            continue  # the map counts blocks of one group of layers
        for link in LINKS:
            engines = [engine_of(profile, link, wait_s) for wait_s in WAITS_S.values()]
            least = wins_from(profile, engines[0])
            row = [name, f"{profile.link_bandwidth_gb_per_s * link:g}", "never" if least is None else f"{least:,}"]
            for engine in engines:
                row += [
                    f"{advantage(tokens, engine):.2f}" if tokens <= profile.max_model_len else NOTHING
                    for tokens in SHOWN
                ]
            rows.append(row)
    intro = (
        "Engine time of computing a preempted request's context again over that of swapping it; above 1 swap wins.\n"
        f"Beside {DECODES} decodes of {CONTEXT} tokens. 'swap wins from': tokens, for one that would run on at once.\n"
        "\n"
    )
    return intro + aligned(rows)


def main() -> None:
    out = parser_for(__doc__, out=RESULTS / "swap-map").parse_args().out
    write_table(out, table())


if __name__ == "__main__":
    main()
