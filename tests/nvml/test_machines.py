"""Making and opening simulated machines."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock_shim.simulator import Machine as OpenMachine
from penstock_shim.simulator import (
    MachineError,
    ProfileError,
    SpecError,
    create_machine,
    environment,
    load_profile,
    parse_spec,
)


def test_a_spec_names_a_profile_and_how_many():
    spec = parse_spec("l4,3")
    assert (spec.profile.name, spec.count) == ("NVIDIA L4", 3)
    assert parse_spec("h200").count == 1


@pytest.mark.parametrize("text", ["h200,0", "h200,17", "h200,-1", "h200,two", "h200,", "", ",2"])
def test_a_spec_that_makes_no_sense_is_refused_with_an_example(text):
    with pytest.raises(SpecError, match="write PROFILE"):
        parse_spec(text)


def test_a_spec_of_an_unknown_card_is_refused():
    with pytest.raises(ProfileError, match="did you mean h100"):
        parse_spec("h10,2")


def test_devices_are_as_their_profile_says(tmp_path):
    with create_machine(tmp_path / "machine", "a100-80g,2") as machine:
        devices = machine.devices()
        profile = load_profile("a100-80g")
        assert [device.index for device in devices] == [0, 1]
        assert {device.name for device in devices} == {profile.name}
        assert devices[0].memory_bytes == profile.memory_bytes
        assert devices[0].sm_count == profile.sm_count
        assert devices[0].tflops == profile.rated_tflops.fp16
        assert devices[0].uuid != devices[1].uuid
        assert machine.usage(1).memory_used_bytes == 634 << 20
        assert machine.record() == []


def test_the_nth_device_of_a_kind_has_the_same_uuid_on_every_machine(tmp_path):
    with create_machine(tmp_path / "a", "t4,2") as a, create_machine(tmp_path / "b", "t4,2") as b:
        assert [x.uuid for x in a.devices()] == [x.uuid for x in b.devices()]


def test_a_machine_that_is_there_is_used_again(tmp_path):
    with create_machine(tmp_path / "machine", "t4") as first:
        first.inject("device-lost")
        with create_machine(tmp_path / "machine", "t4") as again:
            assert again.devices()[0].lost


@pytest.mark.parametrize("other", ["t4,2", "l4"])
def test_a_machine_of_other_devices_is_refused_and_kept(tmp_path, other):
    path = tmp_path / "machine"
    create_machine(path, "t4").close()
    with pytest.raises(MachineError, match="is a simulated machine of 1 x Tesla T4, not of"):
        create_machine(path, other)
    with OpenMachine(path) as machine:
        assert [device.name for device in machine.devices()] == ["Tesla T4"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["machine"]


def test_processes_that_make_the_same_machine_at_once_all_get_it(tmp_path):
    code = "import sys; from penstock_shim.simulator import create_machine as c; "
    code += "sys.stdin.readline(); print(c(sys.argv[1], 'l4,2').usage(0).created_ns)"
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", code, tmp_path / "machine"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(6)
    ]
    for maker in makers:
        maker.stdin.write("go\n")
        maker.stdin.flush()
    created = {maker.communicate()[0] for maker in makers}
    assert [maker.returncode for maker in makers] == [0] * 6
    assert len(created) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["machine"]


def test_a_file_that_is_no_machine_is_refused_and_kept(tmp_path):
    path = tmp_path / "machine"
    path.write_bytes(b"something else")
    with pytest.raises(MachineError, match=str(path)):
        create_machine(path, "t4")
    assert path.read_bytes() == b"something else"


def test_a_machine_that_is_not_there_is_named(tmp_path):
    with pytest.raises(MachineError, match="none"):
        OpenMachine(tmp_path / "none")


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(MachineError, match=r"there is no folder .*none"):
        create_machine(tmp_path / "none" / "machine", "t4")


def test_a_device_that_is_not_there_is_an_index_error(tmp_path):
    with create_machine(tmp_path / "machine", "t4") as machine:
        for method in (machine.usage, machine.record, machine.samples, machine.lift):
            with pytest.raises(IndexError, match="devices 0 to 0, not 1"):
                method(1)


def test_a_closed_machine_says_so(tmp_path):
    machine = create_machine(tmp_path / "machine", "t4")
    machine.close()
    machine.close()
    with pytest.raises(MachineError, match="was closed"):
        machine.devices()


def test_the_environment_puts_the_simulated_libraries_first_and_keeps_the_rest(tmp_path):
    variables = environment(tmp_path / "machine", "tag", {"LD_LIBRARY_PATH": "/opt/lib:/opt/lib"})
    first, *rest = variables["LD_LIBRARY_PATH"].split(":")
    assert first.endswith("penstock_shim/sim")
    assert rest == ["/opt/lib"]
    assert variables["PENSTOCK_SIM_MACHINE"] == str(tmp_path / "machine")
    assert variables["PENSTOCK_SIM_TAG"] == "tag"
