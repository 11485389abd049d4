"""KubeRay's definitions of RayCluster and RayJob, smaller: without descriptions and status, and
what is said more than once said once.

    git clone --depth 1 --branch v1.7.0 https://github.com/ray-project/kuberay
    cd tests/integration/kuberay
    python reduce.py .../kuberay/ray-operator/config/crd/bases > schemas.json
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

SOURCE = (
    "github.com/ray-project/kuberay v1.7.0, ray-operator/config/crd/bases, Apache-2.0; "
    "changed by reduce.py"
)
LEAST = 200  # characters of what is worth a name


def main(folder: Path) -> None:
    found = {}
    for kind in ("RayCluster", "RayJob"):
        definition = yaml.load(
            (folder / f"ray.io_{kind.lower()}s.yaml").read_text(), yaml.CSafeLoader
        )
        (version,) = (one for one in definition["spec"]["versions"] if one["name"] == "v1")
        schema = bare(version["schema"]["openAPIV3Schema"])
        del schema["properties"]["status"]
        found[kind] = schema
    times, definitions = Counter(text(one) for one in schemas(found)), dict[str, Any]()
    reduced = {kind: named(schema, times, definitions) for kind, schema in found.items()}
    made = {"$comment": SOURCE} | reduced | {"$defs": dict(definitions.values())}
    print(json.dumps(made, indent=1))


def bare(node: Any) -> Any:
    """Without descriptions, which are texts; a property of that name is not."""
    if isinstance(node, list):
        return [bare(one) for one in node]
    if not isinstance(node, dict):
        return node
    return {
        key: bare(one)
        for key, one in node.items()
        if key != "description" or not isinstance(one, str)
    }


def schemas(node: Any) -> Iterator[dict[str, Any]]:
    """Every schema in it, not what lies between: a property that is called type has a schema, no
    text.
    """
    for one in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from schemas(one)
    if isinstance(node, dict) and isinstance(node.get("type"), str):
        yield node


def named(node: Any, times: Counter[str], definitions: dict[str, Any]) -> Any:
    """With a reference for what stands there more than once."""
    if isinstance(node, list):
        return [named(one, times, definitions) for one in node]
    if not isinstance(node, dict):
        return node
    made = {key: named(one, times, definitions) for key, one in node.items()}
    if times[text(node)] < 2 or len(text(made)) < LEAST:
        return made
    name, _ = definitions.setdefault(text(node), (str(len(definitions)), made))
    return {"$ref": f"#/$defs/{name}"}


def text(node: Any) -> str:
    return json.dumps(node, sort_keys=True, separators=(",", ":"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
