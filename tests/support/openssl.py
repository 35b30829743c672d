"""The mark of tests that make certificates."""

from __future__ import annotations

import shutil

import pytest

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="certificates are made by openssl, which is not there"
)
