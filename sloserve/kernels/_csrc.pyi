import numpy as np
from numpy.typing import NDArray

def top_k(keys: NDArray[np.float64], seqs: NDArray[np.int64], k: int) -> NDArray[np.int64]: ...
def anneal(
    requests: NDArray[np.float64],
    max_batch: int,
    fixed: int,
    initial: float,
    final: float,
    tau: float,
    moves: int,
    seed: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], int, float]: ...
def exhaustive(
    requests: NDArray[np.float64], max_batch: int, fixed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], int, float]: ...
def pack_greedy(
    gain: NDArray[np.float64],
    weight: NDArray[np.int64],
    seq: NDArray[np.int64],
    capacity: int,
    max_items: int,
    stop_at_misfit: bool,
) -> NDArray[np.int64]: ...
def best_batch(
    gain_by_batch: NDArray[np.float64],
    weight: NDArray[np.int64],
    seq: NDArray[np.int64],
    capacity: int,
    batch_sizes: NDArray[np.int64],
    stop_at_misfit: bool,
) -> tuple[int, NDArray[np.int64], float]: ...
def pack_exact(
    gain: NDArray[np.float64], weight: NDArray[np.int64], capacity: int, num_items: int, at_most: bool
) -> NDArray[np.int64] | None: ...
