"""Programs for one GPU name their device "cuda", in every way that torch has."""

import sys

import pytest
from tests.training.conftest import PROGRAMS, penstock

EXPECTED = {
    "available": "(True, 1)",
    "kind": "(True, 'penstock', True, False)",
    "places": "{'penstock:0'}",
    "current": "(0, None)",
    "name": "2 cards: cpu of node",
    "memory": "True",
    "properties": "True",
    "seeds": "(None, None)",
    "mixed": "torch.bfloat16",
    "timed": "True",
    "parallel": "(16, 2)",
    "moved_in_graph": "tensor([2., 2.], device='penstock:0')",
    "compiled": "(16, 2)",
    "streams": "(4.0, True, True, True)",
    "autocast": "(True, True, False, [True], torch.bfloat16)",
    "pickled": "(True, 'penstock', True)",
    "annotated": "(False, True)",
    "graph": "torch.cuda.CUDAGraph is of one GPU",
    "tags": "True",
    "to_cpu": "cpu",
    "states": "None",
    "old_types": "({'penstock'}, ['FloatTensor', 'LongTensor', 'HalfTensor', 'IntTensor', "
    "'FloatTensor'], True, 'torch.cuda.FloatTensor', 'cpu')",
    "profiled": "True",
    "of_the_type": "True",
    "parts": "(torch.uint8, True, 'torch.cuda.CUDAGraph is of one GPU",
    "nccl": "this program runs once, on all its cards: leave torch.distributed",
    "emptied": "None",
    "cpu": "('cpu', 'cpu')",
}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_TRAIN_DIR", str(tmp_path_factory.mktemp("projects")))
        done = penstock(
            "train", "run", "--cards", "cpu=1,cpu=2", "--", sys.executable, "-W", "ignore",
            PROGRAMS / "one_gpu.py",
        )  # fmt: skip
    return dict(line.split(" ", 1) for line in done.stdout.splitlines()), done


@pytest.mark.parametrize("use", EXPECTED)
def test_what_programs_say_to_torch_cuda_is_answered_by_the_card(told, use):
    lines, done = told
    assert lines.get(use, done.stdout + done.stderr).startswith(EXPECTED[use])
