"""Names of applications that were claimed without one."""

from __future__ import annotations

from penstock.model.names import name_from_command


class Counted(set):
    """A set that counts how often it is asked."""

    asked = 0

    def __contains__(self, name: object) -> bool:
        Counted.asked += 1
        return super().__contains__(name)


def test_names_of_one_program_are_numbered_without_a_gap():
    taken: set[str] = set()
    for _ in range(40):
        taken.add(name_from_command(["/usr/bin/python", "train.py"], taken))
    assert taken == {"python", *(f"python-{number}" for number in range(2, 41))}


def test_a_name_is_never_one_that_is_taken_whichever_have_ended():
    taken = {"python", *(f"python-{number}" for number in range(2, 300) if number % 7)}
    for _ in range(100):
        name = name_from_command(["python"], taken)
        assert name not in taken
        taken.add(name)


def test_a_hundred_thousand_programs_of_one_name_are_not_looked_through():
    taken = Counted(["python", *(f"python-{number}" for number in range(2, 100_000))])
    Counted.asked = 0
    assert name_from_command(["python"], taken) == "python-100000"
    assert Counted.asked < 50
