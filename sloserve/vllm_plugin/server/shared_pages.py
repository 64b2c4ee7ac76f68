"""What one of several API processes publishes for the others."""

import logging

from sloserve.core.clock import Clock
from sloserve.engine.metrics.process_page import Board
from sloserve.engine.metrics.task_page import TaskPage, TaskPages
from sloserve.scheduler.settings import PluginSettings

logger = logging.getLogger(__name__)


def board(settings: PluginSettings, rank: int, processes: int) -> Board:
    """Return the board of an API process, which the others read if there are any.

    Args:
        settings: Settings of the server.
        rank: Number of this API process, from 0.
        processes: Number of API processes of the server.
    """
    names, tenants = settings.classes.names, settings.max_tenant_labels
    if processes > 1:
        try:
            return Board.published(names, tenants, rank)
        except OSError as error:
            logger.warning(
                "sloserve cannot publish what API process %d counts: caps, attainment and coverage will omit it: %s",
                rank,
                error,
            )
    return Board(len(names), tenants)


def task_pages(settings: PluginSettings, rank: int, processes: int, clock: Clock) -> TaskPages:
    """Return the pages of tasks as an API process sees them.

    Args:
        settings: Settings of the server.
        rank: Number of this API process, from 0.
        processes: Number of API processes of the server.
        clock: Clock of this process.
    """
    if processes > 1:
        try:
            return TaskPages(TaskPage.published(settings.max_tasks, rank), clock)
        except OSError as error:
            logger.warning("tasks are known to API process %d alone, which cannot publish them: %s", rank, error)
    return TaskPages(TaskPage(settings.max_tasks), clock)
