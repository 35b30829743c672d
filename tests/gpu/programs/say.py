"""Output of the suite's programs: one line of JSON with a digest of all that they computed."""

import hashlib
import json


def digest_of(*arrays):
    """Of the bytes of NumPy arrays."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(array.tobytes())
    return total.hexdigest()[:16]


def say(**facts):
    print("\n" + json.dumps(facts), flush=True)  # whatever a library left on the line before
