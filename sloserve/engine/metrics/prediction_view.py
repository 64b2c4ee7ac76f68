"""Predictions and promises of one class as watchers see them: shares against their bands, and broken promises."""

from collections.abc import Sequence
from typing import Any

from sloserve.core.judged_window import judged
from sloserve.core.predicted import PREDICTED
from sloserve.core.promise_window import ended_promises
from sloserve.engine.metrics.process_page import Board


def predictions_now(boards: Sequence[Board], class_id: int) -> dict[str, dict[str, Any] | None]:
    """Return by figure what is known of the latest predictions; ``None`` for a figure without any.

    ``judged`` is their number. ``within`` has for each of :data:`~sloserve.core.predicted.LEVELS` the share of requests
    that took no longer than predicted, ``band`` how far it may lie from its level, ``off`` whether it lies outside;
    ``width`` has the 0.9- and the 0.99-quantile in multiples of the median.

    Args:
        boards: Boards of the server's API processes.
        class_id: Index of the class.
    """
    found: dict[str, dict[str, Any] | None] = {}
    for i, figure in enumerate(PREDICTED):
        one = judged(board.predicted[class_id, i] for board in boards)
        found[figure] = (
            None
            if one is None
            else {
                "judged": one.count,
                "within": [round(share, 4) for share in one.coverage],
                "band": [round(band, 4) for band in one.bands],
                "off": [not is_so for is_so in one.calibrated],
                "width": [round(width, 2) for width in one.widths],
            }
        )
    return found


def promises_now(boards: Sequence[Board], class_id: int) -> dict[str, Any] | None:
    """Return the outcomes of the latest promises of a class; ``None`` without any.

    ``broken_share`` is the share of broken ones among the kept and broken, ``allowed_share`` the share that their
    levels allow; both are ``None`` if all were withdrawn. ``off`` says whether more were broken than the levels allow,
    beyond chance.

    Args:
        boards: Boards of the server's API processes.
        class_id: Index of the class.
    """
    one = ended_promises(board.promises[class_id] for board in boards)
    if not one.kept + one.broken + one.withdrawn:
        return None
    shares = {"broken_share": one.broken_share, "allowed_share": one.allowed_share}
    return {
        "kept": one.kept,
        "broken": one.broken,
        "withdrawn": one.withdrawn,
        "off": one.too_many_broken,
        **{name: None if share is None else round(share, 4) for name, share in shares.items()},
    }
