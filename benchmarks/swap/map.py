"""Where does swapping a preempted request's KV take less of the engine's time than computing it again?

Context x hardware x link, from the profiles alone; nothing is run. The rule is the engine's own
(:mod:`sloserve.lso.swapping`), for two victims. One *runs on at once*: the copies to the host and back count in full,
as engine time. One *waits anyway* for longer than they take: what is left is packing, and what staging memory does not
hold. Beside either run ``DECODES`` requests with ``CONTEXT`` tokens each; nothing else is on the link.

Writes to the folder ``--out``: table.txt, map.png.

    python -m benchmarks.swap.map [--out benchmarks/results/swap-map]
"""

import argparse
from pathlib import Path

import numpy as np

from benchmarks.publish import RESULTS
from sloserve.core.arrays import FloatArray
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
        block_size=profile.block_size,
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
    return recompute_s(tokens, running, engine) / swap_s(tokens, engine.block_size, engine.swap)


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
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    intro = (
        "Engine time of computing a preempted request's context again over that of swapping it; above 1 swap wins.\n"
        f"Beside {DECODES} decodes of {CONTEXT} tokens. 'swap wins from': tokens, for one that would run on at once.\n"
        "\n"
    )
    return intro + "\n".join(line.rstrip() for line in lines) + "\n"


def draw(path: Path) -> None:
    import matplotlib.pyplot as plt
    from matplotlib.colors import LogNorm

    from sloserve.report.figure_style import STYLE

    names = profile_names()
    contexts = np.unique(np.geomspace(16, 32_768, 45).astype(int))
    plt.rcParams.update(STYLE)
    figure, panels = plt.subplots(
        len(WAITS_S), len(LINKS), figsize=(11, 5), sharex=True, sharey=True, dpi=110, layout="constrained"
    )
    for of_wait, (waits, wait_s) in zip(panels, WAITS_S.items(), strict=True):
        for panel, link in zip(of_wait, LINKS, strict=True):
            found: FloatArray = np.full((len(names), contexts.size), np.nan)
            for i, name in enumerate(names):
                profile = load_profile(name)
                engine = engine_of(profile, link, wait_s)
                fits = contexts <= profile.max_model_len
                found[i, fits] = [max(advantage(int(tokens), engine), 1e-2) for tokens in contexts[fits]]
            shades = panel.pcolormesh(contexts, range(len(names)), found, cmap="RdBu", norm=LogNorm(0.1, 10.0))
            panel.set(xscale="log", title=f"link x {link:g}, {waits}")
            panel.set_yticks(range(len(names)), names)
            panel.grid(visible=False)
    for panel in panels[-1]:
        panel.set_xlabel("context, tokens")
    bar = figure.colorbar(shades, ax=panels, label="computing again / swapping", ticks=[0.1, 0.3, 1, 3, 10])
    bar.ax.set_yticklabels(["0.1", "0.3", "1", "3", "10"])
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=RESULTS / "swap-map")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    (out / "table.txt").write_text(table())
    draw(out / "map.png")


if __name__ == "__main__":
    main()
