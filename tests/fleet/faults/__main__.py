"""Run seeds, and print what they break with the command that repeats each.

python -m tests.fleet.faults --seed 7 --hours 1 --trace
python -m tests.fleet.faults --seeds 0:1000 --minutes 10
"""

import argparse
import os
import sys

from tests.fleet.faults.runs import run_seed, run_seeds


def main() -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of text have an order then, and a seed is repeated exactly
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.fleet.faults", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    parser = argparse.ArgumentParser(prog="python -m tests.fleet.faults", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, help="the one seed to run")
    parser.add_argument("--seeds", default="0:100", help="FIRST:END, the seeds to run")
    parser.add_argument("--hours", type=float, default=0.25, help="virtual hours with faults of each seed")
    parser.add_argument("--minutes", type=float, help="CPU minutes after which no further seed begins")
    parser.add_argument("--trace", action="store_true", help="print the events of the seed")
    parser.add_argument("--strict", action="store_true", help="do not leave out faults that are known")
    args = parser.parse_args()
    if args.seed is not None:
        return run_seed(args.seed, args.hours, trace=args.trace, strict=args.strict)
    first, _, end = args.seeds.partition(":")
    return run_seeds(range(int(first), int(end)), args.hours, args.minutes, strict=args.strict)


if __name__ == "__main__":
    sys.exit(main())
