"""Names that all parts of the virtual card share."""

from __future__ import annotations

import os

VARIABLE = "PENSTOCK_CARD"  # the cards of this program; "off": torch is left alone
POOL = "pool:"  # begins the variable of a program whose cards a compute pool starts
TCP = "tcp:"  # begins a card at an address, in a list
SHARDING_VARIABLE = "PENSTOCK_CARD_SHARDING"  # whether parameters are sharded: off, auto or on
RECOVERY_VARIABLE = "PENSTOCK_CARD_RECOVERY"  # whether lost cards are started again: off or on
CREDENTIALS_VARIABLE = "PENSTOCK_CARD_CREDENTIALS"  # the program's folder, for cards elsewhere
SPARES_VARIABLE = "PENSTOCK_CARD_SPARES"  # cards that take the place of lost ones, a list as well
WAIT_VARIABLE = "PENSTOCK_CARD_WAIT"  # for how long cards elsewhere are waited for, such as 1h
AS_VARIABLE = "PENSTOCK_CARD_AS"  # "cuda": the device has this name, too
JAX_VARIABLE = "PENSTOCK_CARD_JAX"  # "off": JAX computes on the CPU
EVENTS_VARIABLE = "PENSTOCK_CARD_EVENTS"  # a file that gets a line of JSON for each lost card
TRACE_VARIABLE = "PENSTOCK_CARD_TRACE"  # the file of a trace; %p: the process
FIRST_TORCH, END_TORCH = (2, 13), (2, 16)  # tested releases: from the first on, before the end


class PenstockCardWarning(UserWarning):
    """A line of the program is slow on the device, or figures or a trace cannot be written."""


def cards_text() -> str:
    """The cards of this program, as `VARIABLE` lists them; empty if it has none."""
    text = os.environ.get(VARIABLE, "")
    return "" if text == "off" else text
