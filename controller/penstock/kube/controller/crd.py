"""Custom resource definitions, generated from the policy schema.

`python -m penstock.kube.controller.crd DIR` writes them.

The API server requires "structural" schemas, with a type for every value, no references, and no
unions but int-or-string. Rules between fields are expressed in CEL. The controller reads objects
with the policy models themselves, and so finds all other errors.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

from penstock.kube.objects.names import GROUP
from penstock.model.metric import METRICS
from penstock.model.quantity import format_duration
from penstock.policy.schema import NO_METRIC, QuotaPolicy

VERSION = "v1alpha1"
_HEAD = "# Written by `make gen` from penstock.kube.controller.crd and penstock.policy.schema.\n"
_KEPT = ("type", "enum", "pattern", "minLength", "maxLength", "minProperties", "maxProperties")
MOST_LABELS = 32  # of a selector

# Rules between fields, by model. Each message explains what to write instead.
RULES: dict[str, list[tuple[str, str]]] = {
    "Spec": [
        (
            "!has(self.priority)",
            "priority is only for plain machines: on Kubernetes, set the Pod's priorityClassName",
        ),
    ],
    "Selector": [
        (
            "!has(self.command) && !has(self.user)",
            "command and user are only for plain machines: on Kubernetes, use matchLabels",
        ),
        ("has(self.matchLabels)", "is empty: set matchLabels, or leave the selector out"),
    ],
    "Limits": [
        (
            "!(has(self.cores) && has(self.tflops))",
            "has both cores and tflops: keep only one of them",
        ),
        (
            "has(self.memory) || has(self.cores) || has(self.tflops)",
            "is empty: set memory, and cores or tflops",
        ),
    ],
    "Threshold": [("self.up > self.down", "up must be above down, or scaling would flap")],
    "UtilisationThreshold": [
        ("self.up > self.down", "up must be above down, or scaling would flap")
    ],
    "Metrics": [
        (
            " || ".join(f"has(self.{one.key})" for one in METRICS.values()),
            NO_METRIC,
        ),
    ],
    "Scale": [
        ("(has(self.min) ? self.min : 1) <= self.max", "min must be at most max"),
    ],
}


def policy_crd() -> dict[str, Any]:
    """The CustomResourceDefinition of QuotaPolicy."""
    whole = QuotaPolicy.model_json_schema(by_alias=True)
    spec = _structural({"$ref": "#/$defs/Spec"}, whole["$defs"])
    columns = [
        _column("Ready", "string", '.status.conditions[?(@.type=="Ready")].reason'),
        _column("Pods", "integer", ".status.pods.count"),
        _column("Age", "date", ".metadata.creationTimestamp"),
    ]
    return _definition(
        "QuotaPolicy", "quotapolicies", "qp", spec=spec, status=_policy_status(), columns=columns
    )


def cap_crd() -> dict[str, Any]:
    """The CustomResourceDefinition of QuotaCap, which caps all vGPUs of a namespace."""
    quantity: dict[str, Any] = {
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
    }
    hard = {
        "vgpus": {
            "type": "integer", "minimum": 0, "description": "number of device shares",
        },
        "memory": {
            **quantity,
            "pattern": r"^[0-9.]+([eE][0-9]+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$",
            "description": "device memory of all vGPUs together, such as 200Gi",
        },
        "cores": {
            **quantity,
            "pattern": r"^[0-9]+(\.[0-9])?%?$",
            "description": "compute time of all vGPUs together, in percent of one device: 250 is "
            "two and a half devices",
        },
    }  # fmt: skip
    spec = {
        "type": "object",
        "description": "The limits on all vGPUs of this namespace together, whether they are "
        "allocated through claims or through extended resources.",
        "required": ["hard"],
        "properties": {
            "hard": {
                "type": "object",
                "properties": hard,
                "x-kubernetes-validations": _rules(
                    [("has(self.vgpus) || has(self.memory) || has(self.cores)",
                      "is empty: set vgpus, memory or cores")]
                ),
            }
        },
    }  # fmt: skip
    amounts = {
        "vgpus": {"type": "integer"},
        "memoryBytes": {"type": "integer", "format": "int64"},
        "coresPermille": {"type": "integer", "format": "int64"},
    }
    status = {
        "type": "object",
        "properties": {
            "observedGeneration": {"type": "integer", "format": "int64"},
            "used": {
                "type": "object",
                "description": "The quantities that claims and Pods of this namespace held at the "
                "last count.",
                "properties": amounts,
            },
            "usedInWords": {
                "type": "object",
                "description": "The sum of `used` and `pending` in the units of `hard`, against "
                "which the next request is checked.",
                "properties": {name: {"type": "string"} for name in ("vgpus", "memory", "cores")},
            },
            "pending": {
                "type": "object",
                "description": "Quantities that are admitted but not counted yet, by uid of the "
                "object, or by uid/version/wish for the growth of a Pod.",
                "additionalProperties": {"type": "object", "properties": amounts},
            },
            "counted": {
                "type": "object",
                "description": "The versions of claims and Pods at the last count.",
                "properties": {"claims": {"type": "string"}, "pods": {"type": "string"}},
            },
        },
    }
    columns = [
        _column("vGPUs", "string", ".status.usedInWords.vgpus"),
        _column("Of", "integer", ".spec.hard.vgpus"),
        _column("Memory", "string", ".status.usedInWords.memory"),
        _column("Of memory", "string", ".spec.hard.memory"),
        _column("Cores", "string", ".status.usedInWords.cores"),
        _column("Of cores", "string", ".spec.hard.cores"),
        _column("Age", "date", ".metadata.creationTimestamp"),
    ]
    made = _definition("QuotaCap", "quotacaps", "qc", spec=spec, status=status, columns=columns)
    root = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    # A namespace has only one ledger, because two could not be updated in one step.
    root["x-kubernetes-validations"] = _rules(
        [("self.metadata.name == 'default'", "a namespace has only one QuotaCap, named default")]
    )
    return made


def write(folder: Path) -> None:
    """Writes both definitions as files for `kubectl apply` and Helm."""
    folder.mkdir(parents=True, exist_ok=True)
    for made in (policy_crd(), cap_crd()):
        file = folder / f"{made['spec']['names']['plural']}.yaml"
        file.write_text(text_of(made))


def text_of(definition: dict[str, Any]) -> str:
    """The YAML text of a definition."""
    return _HEAD + yaml.dump(definition, Dumper=_Plain, sort_keys=False, width=100)


class _Plain(yaml.SafeDumper):
    """A dumper that writes no references between equal values, because people read these files."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - as the library calls it
        """Returns true, so that no references are written."""
        return True


def _definition(
    kind: str,
    plural: str,
    short: str,
    *,
    spec: dict[str, Any],
    status: dict[str, Any],
    columns: list[dict[str, str]],
) -> dict[str, Any]:
    schema = {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": ["penstock"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": columns,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def _policy_status() -> dict[str, Any]:
    text = {"type": "string"}
    whole = {"type": "integer", "format": "int64"}
    condition = {
        "type": "object",
        "required": ["type", "status", "reason", "message", "lastTransitionTime"],
        "properties": {
            "type": text,
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "observedGeneration": whole,
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "reason": text,
            "message": text,
        },
    }
    target = {
        "type": "object",
        "required": ["kind", "name"],
        "properties": {
            "kind": text,
            "name": text,
            "state": {"type": "string", "description": "Scaling, Refused or Off"},
            "replicas": whole,
            "wanted": whole,
            "reason": text,
            "metrics": {
                "type": "object",
                "description": "Means over ready Pods, in percent or requests a second.",
                "additionalProperties": {"type": "number"},
            },
        },
    }
    return {
        "type": "object",
        "properties": {
            "observedGeneration": whole,
            "conditions": {
                "type": "array",
                "items": condition,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
            "pods": {
                "type": "object",
                "description": "The Pods to which the policy applies.",
                "properties": {
                    "count": whole,
                    "names": {
                        "type": "array",
                        "description": "The first few of these Pods.",
                        "items": text,
                    },
                },
            },
            "targets": {
                "type": "array",
                "description": "The workloads that the policy scales.",
                "items": target,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["kind", "name"],
            },
        },
    }


def _structural(schema: dict[str, Any], named: dict[str, Any]) -> dict[str, Any]:
    """Converts a JSON Schema into the API server's dialect of OpenAPI 3.0."""
    own: dict[str, Any] = {}
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        own = _structural(named[name], named)
        if name in RULES:
            own["x-kubernetes-validations"] = _rules(RULES[name])
    choices = [one for one in schema.get("anyOf", []) if one.get("type") != "null"]
    if len(choices) == 1:
        own = _structural(choices[0], named)
    elif choices:
        own = _int_or_string(choices)
    own |= {key: schema[key] for key in _KEPT if key in schema}
    if "const" in schema:
        own["enum"] = [schema["const"]]
    if "description" in schema:
        own["description"] = schema["description"]
    _bounds(schema, own)
    if "properties" in schema:
        own["properties"] = {
            name: _structural(one, named) for name, one in schema["properties"].items()
        }
        if required := schema.get("required"):
            own["required"] = required
    more = schema.get("additionalProperties")
    if isinstance(more, dict):
        own["additionalProperties"] = _structural(more, named) | {"maxLength": 63}
        own["maxProperties"] = MOST_LABELS
    _note_default(schema, own)
    return own


def _int_or_string(choices: list[dict[str, Any]]) -> dict[str, Any]:
    """The schema of a quantity: an integer or a text."""
    number, text = choices
    own: dict[str, Any] = {
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": text["pattern"],
    }
    _bounds(number, own)
    return own


def _bounds(schema: dict[str, Any], own: dict[str, Any]) -> None:
    """Converts exclusive bounds, which OpenAPI 3.0 marks with a flag and JSON Schema with a key."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if bound in schema:
            own[bound] = schema[bound]
        if exclusive in schema:
            own[bound], own[exclusive] = schema[exclusive], True


def _note_default(schema: dict[str, Any], own: dict[str, Any]) -> None:
    """Adds a default to the description, because a stored default would outlive a release."""
    default = schema.get("default")
    if not isinstance(default, (str, int)):
        return
    if own.get("type") == "string" and isinstance(default, int):
        default = format_duration(default)
    shown = str(default).lower() if isinstance(default, bool) else default
    before = own.get("description", "")
    own["description"] = f"{before} (default: {shown})" if before else f"default: {shown}"


def _rules(rules: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"rule": rule, "message": message} for rule, message in rules]


def _column(name: str, kind: str, path: str) -> dict[str, str]:
    return {"name": name, "type": kind, "jsonPath": path}


if __name__ == "__main__":
    write(Path(sys.argv[1]))
