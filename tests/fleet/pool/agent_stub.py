"""What a pool starts in an agent's place: ends with the status that it is given, or only when it is told to."""

import sys
import time

if __name__ == "__main__":
    if len(sys.argv) > 1:
        print("wrong: the agent's settings")
        sys.exit(int(sys.argv[1]))
    time.sleep(600)
