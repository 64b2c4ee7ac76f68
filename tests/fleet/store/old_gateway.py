"""A gateway of an older sloserve: it goes on while a newer one upgrades its store.

``python old_gateway.py TREE ADDRESS`` runs the store's code of the older tree TREE: it does one half of its work, says
"half", and does the other once a line comes in.
"""

import sys
from typing import Any


def gateway(open_store: Any, records: Any, address: str) -> None:
    store = open_store(address)
    serve(store, records, "before")
    print("half", flush=True)
    input()  # raises where the test has ended
    serve(store, records, "after")
    store.requests.accept([line(records, "left", i) for i in range(3)])  # to the newer one
    print("done", flush=True)
    store.close()


def line(records: Any, name: str, i: int) -> Any:
    return records.NewRequest(f"{name}-{i}", "t", "m", "batch", 1, b"{}", batch=name)


def serve(store: Any, records: Any, name: str) -> None:
    """A batch of three lines, from its file to its results."""
    states, file = records.BatchState, records.File
    store.batches.add_file(file(f"in-{name}", "t", "in.jsonl", "batch", 10_000, 0.0))
    store.batches.add(records.Batch(name, "t", "/v1/chat/completions", "1h", "in", states.VALIDATING, {}, 0.0), 3600.0)
    assert store.requests.accept([line(records, name, i) for i in range(3)]) == 3
    assert store.batches.move(name, states.VALIDATING, states.IN_PROGRESS, lines=3)
    claim = store.requests.claim("old", 1, 3, 30.0)
    assert claim is not None
    results = [
        records.Result(one.id, one.attempt, records.RequestState.DONE, 200, b"x" * 1000) for one in claim.requests
    ]
    assert all(store.requests.finish(results))
    assert store.batches.move(name, states.IN_PROGRESS, states.FINALIZING)
    assert store.batches.move(name, states.FINALIZING, states.COMPLETED)


if __name__ == "__main__":
    tree, where = sys.argv[1:]
    # The finder of an editable installation comes before every path.
    sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
    sys.path.insert(0, tree)
    from sloserve.fleet.store import records as old_records
    from sloserve.fleet.store.store import open_store as open_old

    assert old_records.__file__.startswith(tree), old_records.__file__
    gateway(open_old, old_records, where)
