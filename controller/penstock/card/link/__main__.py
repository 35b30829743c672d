"""`python -m penstock.card.link DESCRIPTOR MODULE`: a nursery, which `spawned` starts."""

import os
import sys

from penstock.card.link.nursery import nurse

if __name__ == "__main__":
    nurse(int(sys.argv[1]), sys.argv[2])
    os._exit(0)  # to dismantle torch takes half a second
