"""Query of a viewer: which nodes the page shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_CHARACTERS = 128
MOST_PAGE = 100_000


@dataclass(frozen=True)
class Query:
    """`find`: a part of the name of a node, application, kind or model, in lower case."""

    find: str = ""
    page: int = 0

    @staticmethod
    def of(parameters: Mapping[str, str]) -> Query:
        """The query in a URL. Raises ValueError if it is invalid."""
        find, page = parameters.get("find", "").strip().lower(), parameters.get("page", "0")
        if len(find) > MOST_CHARACTERS:
            raise ValueError(f"find has more than {MOST_CHARACTERS} characters")
        if not (page.isascii() and page.isdigit() and len(page) < 9 and int(page) <= MOST_PAGE):
            raise ValueError(f"page is not a number of 0 to {MOST_PAGE}")
        return Query(find, int(page))

    def cut(self, found: int, a_page: int) -> tuple[int, int, slice]:
        """The page that can be shown of `found` nodes, how many pages there are, and its slice."""
        pages = max(1, -(-found // a_page))
        page = min(self.page, pages - 1)
        return page, pages, slice(page * a_page, (page + 1) * a_page)
