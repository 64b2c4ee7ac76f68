import numpy as np
from numpy.typing import NDArray

def top_k(keys: NDArray[np.float64], seqs: NDArray[np.int64], k: int) -> NDArray[np.int64]: ...
