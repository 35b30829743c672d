"""The faults can still be put in, their tests are there, and the list in README.md is theirs."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from tests.faults.table import FAULTS, ROOT

AREAS = {
    *("ledger", "gate", "enforcement", "meter", "extender", "webhook", "caps", "scaling"),
    *("policies", "alerts", "upgrade", "card"),
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_has_its_one_place_and_tests_that_exist(fault):
    text = (ROOT / fault.file).read_text()
    assert fault.text_with(text) != text
    assert fault.tests
    for name in fault.tests:
        file, _, function = name.partition("[")[0].partition("::")
        tests = (ROOT / file).read_text()
        assert not function or re.search(rf"^def {function}\(", tests, re.MULTILINE), name
        assert ("pytest.mark.kube" in tests) == fault.on_a_cluster, name


def test_each_part_has_faults_and_twenty_need_no_cluster():
    counted = Counter(fault.area for fault in FAULTS)
    assert set(counted) >= AREAS
    assert max(Counter(fault.name for fault in FAULTS).values()) == 1
    assert sum(not fault.on_a_cluster for fault in FAULTS) >= 20


def test_the_table_in_the_readme_lists_these_faults():
    text = (ROOT / "tests/README.md").read_text()
    listed = re.findall(r"^\| `(\S+)` \| (\w+) \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    assert listed == [
        (
            one.name, one.area, one.what,
            ", ".join(f"`{name.removeprefix('tests/')}`" for name in one.tests)
            + (" (cluster)" if one.on_a_cluster else ""),
        )
        for one in FAULTS
    ]  # fmt: skip
