"""Whether the tests that a document names, as `file::test`, exist."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def is_defined(file: Path, name: str) -> bool:
    """Whether `file`, in Python or C, defines the test `name`."""
    form = r"^TEST\({}\)" if file.suffix == ".c" else r"^(?:async )?def {}\("
    text = file.read_text() if file.is_file() else ""
    return re.search(form.format(re.escape(name)), text, re.MULTILINE) is not None
