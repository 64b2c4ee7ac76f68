"""The benchmarks of EconoServe as published and of guests in ``econo``, once and small."""

import json
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.slow


def test_counts_of_guests_and_of_reserved_kv(printed: Callable[..., str]) -> None:
    rows = [json.loads(line) for line in printed("policies.econo_hosting", "--quick").splitlines()]
    of = {(row["form"], row["lengths"]): row for row in rows}
    known = of["whole", "oracle"]
    assert 0 < known["guest_grants"] < 0.5 and known["guests"] > 0
    assert of["whole", "predicted"]["guests"] == 0, "equal predictions leave no request half as long as another"
    assert known["prompts_s"] >= known["confined_s"] > 0 and 0 < known["reserved"] < 1
    assert "guests" not in of["stock", "-"]


def test_the_paper_s_figures(printed: Callable[..., str]) -> None:
    lines = [json.loads(line) for line in printed("policies.econo_published", "--quick").splitlines()]
    policies = [line["policy"] for line in lines if "policy" in line]
    assert policies.count("stock") == 2 and "sdo, error 30 %" in policies and "full, known" in policies
    (fig9,) = (line["capacity"] for line in lines if "capacity" in line)
    assert [one["policy"] for one in fig9] == ["stock", "full, predicted", "full, known"]


def test_guests_beside_econo_and_rivals(printed: Callable[..., str]) -> None:
    rows = [json.loads(line) for line in printed("policies.econo_guests", "--quick").splitlines()]
    assert len(rows) == 14 and {row["form"] for row in rows} >= {
        "stock",
        "econo",
        "first-fit",
        "backfill",
        "mean",
        "spans",
    }
    econo = next(row for row in rows if row["form"] == "econo")
    assert econo["gain"][0] == econo["tokens_gain"][0] == 0 and econo["guests"] == 0
