"""One commit for all items that came during the commit before.

A commit waits for the disk, for about as long whether it holds one row or a thousand. Here all items that come while a
commit runs go into the next one together, so that throughput grows with load and an idle store responds at once.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Final, Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

MOST: Final = 1024
"""The most items in one commit."""


class GroupCommit(Generic[Item, Answer]):
    """Call ``commit`` with all waiting items, in a thread of the executor, one call at a time.

    ``commit`` returns one result for each item, in their order. If it raises, each of its callers gets the error.
    """

    def __init__(self, commit: Callable[[Sequence[Item]], Sequence[Answer]], executor: Executor) -> None:
        self._commit = commit
        self._executor = executor
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._running: asyncio.Task[None] | None = None

    async def __call__(self, item: Item) -> Answer:
        """Return the result for ``item`` once it is committed. Cancelling the caller does not withdraw the item."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await answer

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                part, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
                try:
                    answers = await loop.run_in_executor(self._executor, self._commit, [item for item, _ in part])
                except Exception as error:
                    for _, future in part:
                        if not future.done():
                            future.set_exception(error)
                else:
                    for (_, future), answer in zip(part, answers, strict=True):
                        if not future.done():
                            future.set_result(answer)
        finally:
            self._running = None
