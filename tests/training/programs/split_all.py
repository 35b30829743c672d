"""Runs a program whose tensors are split over the cards however small: `split_all.py FILE …`."""

import runpy
import sys

import torch

torch.penstock._session().planner._least_work = 0
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
