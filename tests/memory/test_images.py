"""Code and variables are charged as the device takes them: one image of several, as it is used."""

from __future__ import annotations

from functools import partial

import pytest
from tests.memory.support import image_memory, random_images

MIB = 1 << 20


@pytest.fixture
def on(on_two_devices):
    return partial(on_two_devices, room=256 * MIB)


@pytest.mark.parametrize("mode", ["LAZY", "EAGER"])
@pytest.mark.parametrize(
    ("profile", "taken_mib", "entries"),
    [
        ("h200", 8, ["50:2", "70:4", "80:16", "90:8", "100:32", "120:32"]),
        ("h200", 16, [*(f"z{sm}:16" for sm in range(50, 140, 10))]),
        ("l4", 6, ["80:4", "86:6", "90:8"]),
        ("l4", 6, ["86:6", "80:4", "p80:1"]),
        ("a100-80g", 4, ["86:6", "80:4", "75:12"]),
        ("h200", 6, ["z100:20", "z80:20", "z90:6", "p90:1"]),
        ("h200", 4, ["p50:1", "p80:2", "100:16", "80:16", "p100:8"]),
    ],
    ids=["exact", "compressed", "lower minor", "not PTX", "not a higher minor", "mixed", "PTX"],
)
def test_of_several_architectures_the_one_that_the_device_takes_is_charged(
    on, profile, taken_mib, entries, mode
):
    tenant = on(profile=profile)
    tenant.run(image_memory.one_of_several, taken_mib, *entries, CUDA_MODULE_LOADING=mode)
    tenant.reap()
    assert tenant.charged() == 0


@pytest.mark.parametrize(
    "program",
    [
        image_memory.none_fits,
        image_memory.unused_costs_nothing,
        image_memory.kernel_by_kernel,
        image_memory.managed_variable,
        image_memory.pointers_to_code,
        image_memory.compressed,
        image_memory.by_threads_at_once,
    ],
    ids=lambda program: program.__name__,
)
def test_lazily_loaded_code_is_charged_as_it_is_used(on, program):
    tenant = on()
    tenant.run(program)
    tenant.reap()
    assert tenant.charged() == 0


def test_a_program_that_forces_the_compilation_of_ptx_is_charged_for_its_result(on):
    on().run(image_memory.forced_to_compile, CUDA_FORCE_PTX_JIT="1")


def test_a_kernel_is_charged_in_every_context_that_it_is_launched_in(on):
    on(contexts=3).run(image_memory.in_every_context)


def test_eager_loading_is_charged_at_once_in_every_context(on):
    on(contexts=2).run(image_memory.eagerly, CUDA_MODULE_LOADING="EAGER")


def test_more_than_64_copies_of_a_library_all_come_back(on):
    tenant = on(contexts=71, room=512 * MIB)
    tenant.run(image_memory.unloaded_from_many, 70)
    tenant.reap()
    assert tenant.charged() == 0


@pytest.mark.parametrize("fill", ["idle", "in use"])
def test_a_launch_at_a_full_quota_is_refused_only_when_nothing_can_be_freed(on, fill):
    tenant = on()
    tenant.run(image_memory.at_a_full_quota, fill)
    assert tenant.peak() <= 256 * MIB + 520 * MIB


def test_a_load_that_the_driver_refuses_leaves_nothing_charged(on):
    on().run_beside_a_full_device(image_memory.beside_a_full_device)


@pytest.mark.parametrize(("seed", "mode"), [(1, "LAZY"), (2, "LAZY"), (3, "EAGER")])
def test_random_images_are_never_charged_less_than_the_device_holds(on, seed, mode):
    tenant = on(room=1024 * MIB)
    tenant.run(random_images.random_images, seed, CUDA_MODULE_LOADING=mode)
    assert tenant.peak() <= (1024 + 520) * MIB


def test_images_in_files_are_charged_alike(on, tmp_path):
    on().run(image_memory.from_files, tmp_path)
