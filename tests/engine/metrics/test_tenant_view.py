"""The tenants that watchers see: the worst first, over all engines and API processes, and a bounded number of them."""

from pathlib import Path
from typing import Any

from sloserve.core.attainment_window import AttainmentWindow
from sloserve.core.outcome import Outcome
from sloserve.engine.metrics.engine_page import find_pages
from sloserve.engine.metrics.process_page import Board, tenant_key
from sloserve.engine.metrics.tenant_figures import FIGURES
from sloserve.engine.metrics.tenant_view import MOST_SHOWN, tenants_now
from tests.engine.metrics.test_tenant_figures import Engine


class Server:
    """Engines and API processes of one server."""

    def __init__(self, folder: Path, engines: int = 1) -> None:
        self.folder, self.boards = folder, [Board(1, 40), Board(1, 40)]
        self.engines = [Engine(folder, 40, [], rank) for rank in range(engines)]

    def ended(self, process: int, place: int, tenant: str, *met: bool) -> None:
        board = self.boards[process]
        board.tenants[place] = tenant_key(tenant)
        window = AttainmentWindow(board.tenant_ended[1 + place])
        for one in met:
            window.record({"ttft": one}, Outcome.COMPLETED, 100.0)

    def view(self) -> dict[str, Any]:
        return tenants_now([page.snapshot() for page in find_pages(self.folder)], self.boards, 101.0)


def test_one_tenant_alone_is_not_shown_and_two_are(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.engines[0].serves("a")
    assert server.view() == {"tenants": [], "more_tenants": 0}
    server.engines[0].serves("b")
    assert [row["name"] for row in server.view()["tenants"]] == ["a", "b"]


def test_the_tenant_with_fewest_requests_in_time_comes_first(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.engines[0].serves("a", "b", "c")
    server.ended(0, 0, "b", True, True)
    server.ended(1, 0, "c", True)
    server.ended(1, 1, "b", False)
    first, second, third = server.view()["tenants"]
    assert [first["name"], second["name"], third["name"]] == ["b", "c", "a"]
    assert (first["attained"][0], first["state"]) == ([0.6667, 3], "bad")
    assert (second["attained"][0], second["state"], third["attained"][0]) == ([1.0, 1], "fine", [None, 0])
    assert (first["running"], first["waiting"], first["weight"]) == (2, 2, 1.0)
    # Of 6 s b had 2, one of which is beyond its share.
    assert (first["served"], first["fair"], first["debt_s"]) == (0.3333, 0.1667, 1.0)


def test_shares_of_several_engines_are_shown_as_one(tmp_path: Path) -> None:
    server = Server(tmp_path, engines=2)
    server.engines[0].serves("a", "b")
    server.engines[1].serves("b")
    rows = {row["name"]: row for row in server.view()["tenants"]}
    assert rows["a"]["served"] == 0.25 and rows["b"]["served"] == 0.75 and rows["b"]["debt_s"] == 2.0


def test_a_debt_of_nearly_nothing_has_no_sign(tmp_path: Path) -> None:
    server = Server(tmp_path)
    engine = server.engines[0]
    engine.serves("a", "b")
    debts = engine.page.values[engine.first :].reshape(-1, len(FIGURES))[:, FIGURES.index("debt_s")]
    debts[1:3] = -0.04, 0.04
    assert [str(row["debt_s"]) for row in server.view()["tenants"]] == ["0.0", "0.0"]


def test_a_view_names_a_bounded_number_of_tenants(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.engines[0].serves(*(f"{number}" * 100 for number in range(30)))
    view = server.view()
    assert len(view["tenants"]) == MOST_SHOWN and view["more_tenants"] == 30 - MOST_SHOWN
    assert max(len(row["name"]) for row in view["tenants"]) == 64


def test_requests_of_a_tenant_that_were_not_served_are_counted(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.engines[0].serves("a", "b")
    server.ended(0, 0, "b", True)
    window = AttainmentWindow(server.boards[1].tenant_ended[1])
    server.boards[1].tenants[0] = tenant_key("b")
    for _ in range(3):
        window.record({}, Outcome.REJECTED, 100.0)
    row = server.view()["tenants"][0]
    assert (row["attained"][0], row["not_served"], row["state"]) == ([1.0, 1], [3, 3], "late")
