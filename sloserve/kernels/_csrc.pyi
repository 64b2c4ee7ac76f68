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
