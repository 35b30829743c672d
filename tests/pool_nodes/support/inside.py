"""The first process in the namespaces: `inside SCENARIO FOLDER ARGUMENTS`; the result is JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.pool_nodes.support import namespaces, scenarios

if __name__ == "__main__":
    namespaces.end_with_the_test()
    scenario = getattr(scenarios, sys.argv[1])
    result = scenario(Path(sys.argv[2]), **json.loads(sys.argv[3]))
    print(json.dumps(result), flush=True)
