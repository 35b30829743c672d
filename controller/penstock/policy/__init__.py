"""Quota policies: YAML files with defaults, caps and behaviour. `schema.py` defines the keys."""

from penstock.policy.document import PolicyError, Position, Problem
from penstock.policy.load import LoadedPolicy, load_files, load_text
from penstock.policy.match import matches_command, policy_for_command
from penstock.policy.schema import QuotaPolicy, json_schema

__all__ = [
    "LoadedPolicy",
    "PolicyError",
    "Position",
    "Problem",
    "QuotaPolicy",
    "json_schema",
    "load_files",
    "load_text",
    "matches_command",
    "policy_for_command",
]
