"""Web page that shows who has which blocks of a compute pool, or which shares of a node's devices.

The page is read-only. What it shows comes from a function that is called at most once a second, and
only while somebody looks, so that many viewers cost as much as one.
"""

from penstock.web.address import Address, web_address
from penstock.web.query import Query
from penstock.web.state import applications_data, bar_data, card_data

__all__ = ["Address", "Query", "applications_data", "bar_data", "card_data", "web_address"]
