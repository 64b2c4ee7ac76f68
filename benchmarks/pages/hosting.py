"""Tables of KVC pipelining: why EconoServe as published loses to stock, and what guests are worth in ``econo``."""

import pandas as pd

from benchmarks.pages.results import means, saved

FORMS = {
    "-D": "`-D`: whole lengths reserved",
    "-D, hosting": "`-D` with hosting",
    "-D, future": "`-D`, reservations counted as they grow",
    "-D, future, unconfined": "the same, prompts not confined",
    "whole": "as published",
    "whole, edges 3, 6, 9": "as published, ranges end at 3, 6 and 9 s",
    "whole, by arrival": "as published, by arrival",
    "whole, unconfined": "as published, prompts not confined",
}
"""Names of the forms of ``econo-paper`` in the table."""
RIVALS = ("stock", "edf:step_budget=true", "sjf:step_budget=true", "niyama:step_budget=true", "auto")
GUESTS = {"first-fit": "first fit", "backfill": "backfill", "mean": "mean alone", "spans": "EconoServe's spans"}


def hosting() -> pd.DataFrame:
    """Return the counts of each form of ``econo-paper`` at stock's capacity, with predicted and with known lengths."""
    mean = means("econo_hosting", by=["form", "lengths"], load=1.0)
    columns = {
        "ms a token": ("normalized_latency_ms", "{:.0f}"),
        "in time": ("slo_attainment", "{:.0%}"),
        "KV reserved and unused": ("reserved", "{:.0%}"),
        "grants to guests": ("guest_grants", "{:.1%}"),
        "s until a prompt is admitted": ("prompts_s", "{:.1f}"),
        "of these, while a reply waits": ("confined_s", "{:.1f}"),
    }
    found = {
        name: {
            head: ", ".join(spec.format(mean.loc[form, lengths][figure]) for lengths in ("predicted", "oracle"))
            for head, (figure, spec) in columns.items()
        }
        for form, name in FORMS.items()
    }
    return pd.DataFrame(found).T.rename_axis("`econo-paper`, load 1; lengths predicted, known")


def guests() -> pd.DataFrame:
    """Return, for each cell, the share in time under ``econo`` and rivals, and what each form of hosting adds."""
    found = {}
    cells = pd.DataFrame(saved("econo_guests")["rows"]).groupby(["workload", "targets", "load"], sort=False)
    for (workload, targets, load), of in cells:
        met = of.set_index(["form", "lengths"]).attainment
        for lengths in ("predicted", "known"):
            own = of[of.lengths == lengths].set_index("form")
            others = ", ".join(f"{100 * met[rival, '-']:.0f}" for rival in RIVALS)
            texts = {
                "stock, `edf`*, `sjf`*, `niyama`*, `auto`": others,
                "`econo`": f"{100 * met['econo', lengths]:.1f}",
            }
            texts |= {name: _gain(own.loc[form]) if form in own.index else "=" for form, name in GUESTS.items()}
            found[f"{workload}, {targets}, {load}, {lengths}"] = texts
    return pd.DataFrame(found).T.rename_axis("workload, targets, load, lengths")


def _gain(row: pd.Series) -> str:
    gain, half = row.gain
    tokens, half_tokens = row.tokens_gain
    return f"{gain:+.1f} ± {half:.1f}; {tokens:+.1f} ± {half_tokens:.1f}; {row.guests:.0%}"
