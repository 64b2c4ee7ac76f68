"""Read what this server's engines publish about their requests and policy, in memory shared with its API processes."""

from sloserve.core.served import InEngine
from sloserve.engine.metrics.engine_page import PageReader, find_pages


class EnginePages:
    """The pages of this server's engines, looked for until there are some."""

    def __init__(self) -> None:
        self._pages: list[PageReader] = []

    def ended(self, engine_request_id: str) -> InEngine:
        """Return what a request that ended met, which is named as in the engine."""
        found = (page.ended(engine_request_id) for page in self.found())
        return next((met for met in found if met is not None), InEngine())

    def found(self) -> list[PageReader]:
        """Return the pages; none before an engine has made one, or if no engine could."""
        if not self._pages:
            try:
                self._pages = find_pages()
            except OSError:  # the engine could not make one either, and said so
                return []
        return self._pages
