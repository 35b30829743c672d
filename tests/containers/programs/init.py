"""`init.py NAME`: opens the driver by this name and says what cuInit answers."""

import ctypes
import sys

print(ctypes.CDLL(sys.argv[1]).cuInit(0))
