"""What a pool starts in an agent's place: ends with the status that it is given, or only when it is told to (stay)."""

import sys
import time

if __name__ == "__main__":
    if sys.argv[1] != "stay":
        print("wrong: the agent's settings")
        sys.exit(int(sys.argv[1]))
    time.sleep(600)
