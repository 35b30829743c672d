"""`import torch` with Penstock installed: it never fails, costs nothing, and starts nothing."""

import pytest
from tests.card.support.import_torch import ForkServer, broken, other_extension, run

NAME = "print(torch._C._get_privateuse1_backend_name())"
# What `import torch` does at its end. Forks have torch already.
LOAD = "import sys, torch; from penstock.card import autoload; autoload.load()\n"
ADD_FINDER = "import sys; sys.path.insert(0, {!r}); import sitecustomize\n"


@pytest.fixture(scope="module")
def forks():
    server = ForkServer()
    yield server
    server.close()


def test_a_program_without_a_card_loads_four_small_modules_and_torch_stays_as_it_is(forks):
    code = f"""
import sys, torch
before = set(sys.modules)
from penstock.card import autoload
autoload.load()
print(*sorted(set(sys.modules) - before), hasattr(torch, "penstock"))
{NAME}
"""
    modules = "penstock penstock.card penstock.card.autoload penstock.card.names"
    assert forks.run(code).lines == [f"{modules} False", "privateuseone"]


def test_import_torch_does_no_more_than_that_by_itself():
    code = f"""
import sys, torch
print(*sorted(one for one in sys.modules if one.startswith("penstock")))
{NAME}
"""
    modules = "penstock penstock.card penstock.card.autoload penstock.card.names"
    assert run(code).lines == [modules, "privateuseone"]


def test_a_program_with_a_card_starts_nothing_before_it_uses_the_device():
    code = """
import sys, threading, psutil, torch

def tell():
    is_loaded = "penstock.card.device.start" in sys.modules
    print(is_loaded, len(psutil.Process().children(recursive=True)), threading.active_count())

place = torch.device("penstock")
print(place, torch.accelerator.current_accelerator(), torch.penstock.device_count())
torch.nn.Linear(2, 2)(torch.ones(1, 2)).sum()
torch.manual_seed(0)
tell()
torch.empty(2, device=place)
tell()
torch.ones(2, device=place).sum().item()
print(len(psutil.Process().children(recursive=True)) > 0)
"""
    expected = ["penstock penstock 1", "False 0 1", "True 0 1", "True"]
    assert run(code, PENSTOCK_CARD="cpu").lines == expected


@pytest.mark.parametrize(
    "way",
    [
        'torch.empty(2, device="penstock")',
        'torch.nn.Linear(2, 2, device="penstock")',
        'torch.set_default_device("penstock"); torch.empty(2)',
        'torch.empty(2, device="meta").new_empty(2, device="penstock")',
        'torch.ops.aten.empty.memory_format([2], device=torch.device("penstock"))',
        'torch.ops.aten.zeros.default([2], device=torch.device("penstock"))',
        'torch.asarray(numpy.ones(2), device="penstock")',
        'torch.UntypedStorage(8, device="penstock")',
        'torch.load(saved, map_location="penstock")',
        'torch.ones(2).to("penstock")',
        "torch.nn.Linear(2, 2).penstock()",
    ],
)
def test_kernels_are_there_at_the_first_use_by_whatever_way(forks, way):
    code = f"""{LOAD}
import io, numpy
from penstock.card import cards

def start_cards(places):  # it is not about them
    raise InterruptedError
cards.start_cards = start_cards
saved = io.BytesIO()
torch.save(torch.ones(2), saved)
saved.seek(0)
assert "penstock.card.device.start" not in sys.modules
try:
    {way}
except InterruptedError:
    pass
print(sys.modules["penstock.card.device.start"].is_registered())
"""
    assert forks.run(code, PENSTOCK_CARD="cpu").lines == ["True"]


@pytest.mark.parametrize(
    "way",
    [
        'torch.Generator(device="penstock").manual_seed(1)',
        "torch.ones(2).pin_memory()",
        "list(torch.utils.data.DataLoader([1, 2], pin_memory=True))",
        "torch.accelerator.synchronize()",
    ],
)
def test_what_needs_no_kernel_works_before_the_first_use(forks, way):
    assert forks.run(f"{LOAD}{way}\nprint('done')", PENSTOCK_CARD="cpu").lines == ["done"]


def test_content_is_right_by_ways_on_which_torch_does_not_call_lazy_init(forks):
    code = f"""{LOAD}
import numpy
print(torch.asarray(numpy.arange(3.0), device="penstock").tolist())
print(torch.ops.aten.ones.default([2], device=torch.device("penstock")).tolist())
"""
    assert forks.run(code, PENSTOCK_CARD="cpu").lines == ["[0.0, 1.0, 2.0]", "[1.0, 1.0]"]


def test_an_operation_that_the_device_does_not_have_is_named(forks):
    code = f"""{LOAD}
library = torch.library.Library("mine", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: x + x, "CUDA")
try:
    torch.ops.mine.twice(torch.empty(2, device="penstock"))
except NotImplementedError as error:
    print(error)
"""
    expected = "device penstock has no mine::twice: call it with tensors on the CPU"
    assert forks.run(code, PENSTOCK_CARD="cpu").lines == [expected]


def test_import_torch_works_with_a_broken_installation_also_where_warnings_are_errors(tmp_path):
    path = broken(tmp_path, "penstock.card.device.module", "ModuleNotFoundError")
    code = "import torch; print(torch.ones(2).sum().item())"
    options = ("-W", "error::RuntimeWarning")
    assert run(code, *options, PENSTOCK_CARD="cpu", PYTHONPATH=path).lines == ["2.0"]


@pytest.mark.parametrize("error", ["ModuleNotFoundError", "RuntimeError"])
@pytest.mark.parametrize("part", ["module", "place", "first_use", "patches"])
def test_a_part_that_raises_is_told_to_programs_with_a_card_alone(forks, tmp_path, part, error):
    path = broken(tmp_path, f"penstock.card.device.{part}", error)
    code = f"{ADD_FINDER.format(path)}{LOAD}print(torch.ones(2).sum().item())"
    done = forks.run(code, PENSTOCK_CARD="cpu")
    assert (done.status, done.stdout) == (0, "2.0\n"), done.stderr
    told = "RuntimeWarning: device penstock cannot be used: "
    assert f"{told}{error}: this part is broken" in done.stderr
    assert forks.run(code).lines == ["2.0"]


@pytest.mark.parametrize("first", [True, False])
def test_another_extension_keeps_its_place_in_a_program_without_a_card(tmp_path, first):
    path = other_extension(tmp_path, first=first)
    assert run(f"import torch; {NAME}", PYTHONPATH=path).lines == ["other"]


def test_a_program_with_a_card_does_not_load_an_extension_that_comes_later(tmp_path):
    path = other_extension(tmp_path, first=False)
    code = f"import sys, torch; {NAME}; print('other_extension' in sys.modules)"
    assert run(code, PENSTOCK_CARD="cpu", PYTHONPATH=path).lines == ["penstock", "False"]


def test_a_program_with_a_card_is_told_of_an_extension_that_came_first(tmp_path):
    path = other_extension(tmp_path, first=True)
    done = run(f"import torch; {NAME}", PENSTOCK_CARD="cpu", PYTHONPATH=path)
    assert (done.status, done.stdout) == (0, "other\n"), done.stderr
    assert "the extension other of torch has the place" in done.stderr
    assert "set TORCH_DEVICE_BACKEND_AUTOLOAD=0 and call penstock.card.load()" in done.stderr


def test_the_device_is_loaded_by_hand_where_torch_loads_no_extension(tmp_path):
    path = other_extension(tmp_path, first=True)
    code = f"import torch, penstock.card; penstock.card.load(); {NAME}\n"
    code += "penstock.card.load(); print(torch.empty(2, device='penstock').device)"
    variables = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONPATH": path}
    assert run(code, PENSTOCK_CARD="cpu", **variables).lines == ["penstock", "penstock:0"]


@pytest.mark.parametrize(
    ("cards", "why"), [("off", "$PENSTOCK_CARD is off"), ("", "$PENSTOCK_CARD is not set")]
)
def test_loading_by_hand_without_a_card_says_what_to_do(forks, cards, why):
    code = f"""
import penstock.card, torch
try:
    penstock.card.load()
except penstock.PenstockError as error:
    print(error)
{NAME}
"""
    told, name = forks.run(code, PENSTOCK_CARD=cards).lines
    assert name == "privateuseone"
    assert why in told
    assert "penstock run --tflops" in told


def test_an_older_torch_is_left_alone_and_said_to_be_too_old(forks):
    done = forks.run(
        f"import torch; torch.__version__ = '2.12.1+cpu'\n{LOAD}{NAME}", PENSTOCK_CARD="cpu"
    )
    assert done.stdout == "privateuseone\n"
    assert "torch 2.12.1+cpu is too old: the device needs 2.13 or newer" in done.stderr


def test_a_newer_torch_is_warned_of_once_when_the_device_is_used(forks):
    code = """
import torch, warnings
torch.__version__ = "2.99.0"
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as told:
    from penstock.card import autoload
    autoload.load()
    torch.device("penstock")
    print(len(told))
    for _ in range(3):
        torch.empty(2, device="penstock")
    print(len(told), told[0].message)
"""
    before, after = forks.run(code, PENSTOCK_CARD="cpu").lines
    assert before == "0"
    assert after.startswith("1 torch 2.99.0 was not tested with device penstock")


def test_a_child_that_is_forked_before_the_first_use_has_cards_of_its_own(forks):
    code = f"""{LOAD}
import os
child = os.fork()
print(torch.ones(2, device="penstock").sum().item(), flush=True)
if child:
    os.waitpid(child, 0)
"""
    assert forks.run(code, PENSTOCK_CARD="cpu").lines == ["2.0", "2.0"]


def test_a_child_that_is_forked_later_is_told_to_be_spawned(forks):
    code = f"""{LOAD}
import os
torch.ones(2, device="penstock").sum().item()
if child := os.fork():
    os.waitpid(child, 0)
else:
    try:
        torch.ones(2, device="penstock")
    except RuntimeError as error:
        print(str(error).splitlines()[0], flush=True)
"""
    (line,) = forks.run(code, PENSTOCK_CARD="cpu").lines
    assert "start the child with the 'spawn' start method" in line


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_dataloader_start_nothing(tmp_path, method):
    program = tmp_path / "program.py"
    program.write_text(f"""
import sys, torch, psutil

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        is_loaded = "penstock.card.device.start" in sys.modules
        return torch.tensor([index, is_loaded, len(psutil.Process().children())])

if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(
        Numbers(), num_workers=1, multiprocessing_context={method!r}, pin_memory=True
    )
    print([one[0].tolist() for one in loader])
""")
    code = f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')"
    assert run(code, PENSTOCK_CARD="cpu").lines == ["[[0, 0, 0], [1, 0, 0]]"]
