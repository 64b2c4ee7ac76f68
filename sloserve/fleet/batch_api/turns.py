"""Work on batches in slices, so that no tenant's large files hold up the others: each tenant's turn is one slice."""

from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass, field

from sloserve.fleet.store.records import Batch, BatchState

Key = tuple[str, BatchState]
Slices = Generator[None, None, bool]
"""Work that stops after each of its slices; returns whether the batch has moved."""


@dataclass
class Turns:
    """Work that has begun, by batch and the state in which it began; each tenant has one piece at a time.

    Work that is dropped here begins again in a later turn.
    """

    _begun: dict[Key, Slices] = field(default_factory=dict)
    _had: dict[str, Key] = field(default_factory=dict)
    """Key of the work that each tenant had in this round."""

    def begin_round(self, unfinished: Collection[Batch]) -> None:
        """Drop work on batches that have ended or moved on, which are all but ``unfinished``."""
        tenants = {(batch.id, batch.state): batch.tenant for batch in unfinished}
        for key in self._begun.keys() - tenants.keys():
            self._begun.pop(key).close()
        self._had = {tenants[key]: key for key in self._begun}

    def has_begun(self, batch: Batch) -> bool:
        """Return whether work on the batch in its state has begun."""
        return (batch.id, batch.state) in self._begun

    @property
    def is_writing(self) -> bool:
        """Whether results of any batch are being written."""
        return any(state is not BatchState.VALIDATING for _, state in self._begun)

    def slice(self, batch: Batch, begin: Callable[[Batch], Slices]) -> bool:
        """Do a slice of the batch's work unless its tenant has other work; return whether that moved the batch.

        Raises: what the work raises, which is then dropped.
        """
        key = batch.id, batch.state
        if self._had.setdefault(batch.tenant, key) != key:
            return False
        if key not in self._begun:
            self._begun[key] = begin(batch)
        try:
            next(self._begun[key])
        except StopIteration as over:
            moved = bool(over.value)
            self._over(batch, key, moved)
            return moved
        except BaseException:
            self._over(batch, key, moved=False)
            raise
        return True

    def _over(self, batch: Batch, key: Key, moved: bool) -> None:
        del self._begun[key]
        if not moved:  # work that failed holds up no other batch of its tenant
            del self._had[batch.tenant]
