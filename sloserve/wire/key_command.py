"""``sloserve key``."""

import json

from sloserve.cli.output_flags import JsonFlag
from sloserve.cli.root import app


@app.command()
def key(as_json: JsonFlag = False) -> None:
    """Print a new key for a client, and its hash.

    The hash belongs in the file that `serve` and `fleet` take as --keys.
    """
    from sloserve.wire.keys import new_key

    made, digest = new_key()
    print(json.dumps({"key": made, "hash": digest}) if as_json else f"key:  {made}\nhash: {digest}")
