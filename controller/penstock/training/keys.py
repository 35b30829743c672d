"""Keys: what all parts of a job's document are made of, strict mappings and names."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints

NAME = r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$"
Name = Annotated[str, StringConstraints(pattern=NAME)]


class Strict(BaseModel):
    """A mapping that refuses keys that it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
