"""Records the architectures that engines have code for, from their sources, as plan judges by them.

    python scripts/record_architectures.py ENGINE VERSION FOLDER [FOLDER...]

FOLDER holds the engine's own package, as a wheel has it unpacked; of several the lists are joined.
Nothing of it is run. Writes orchestrator/engines/architectures.json.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

OUT = Path(__file__).resolve().parents[1] / "orchestrator" / "engines" / "architectures.json"


def keys_of(file: Path, *variables: str) -> set[str]:
    """Keys of all dicts that are assigned to one of these variables, or given to its ``update``."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        targets: list[ast.expr] = []
        value: ast.expr | None = None
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign):
            targets, value = [node.target], node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            targets, value = [node.func.value], node.args[0]
        if value is None or not any(getattr(one, "id", "") in variables for one in targets):
            continue
        if isinstance(value, ast.Dict):
            names = (key.value for key in value.keys if isinstance(key, ast.Constant))
            found |= {name for name in names if isinstance(name, str)}
        elif isinstance(value, ast.Call):  # dict(name=value)
            found |= {keyword.arg for keyword in value.keywords if keyword.arg}
    return found


def vllm(folder: Path) -> set[str]:
    return keys_of(
        folder / "model_executor" / "models" / "registry.py",
        "_TEXT_GENERATION_MODELS",
        "_MULTIMODAL_MODELS",
        "_TRANSFORMERS_SUPPORTED_MODELS",
        "_TRANSFORMERS_BACKEND_MODELS",
    )


def sglang(folder: Path) -> set[str]:
    return set(_entry_classes(folder / "srt" / "models"))


def _entry_classes(folder: Path) -> Iterator[str]:
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "EntryClass":
                names = (one.id for one in ast.walk(node.value) if isinstance(one, ast.Name))
                yield from names


def turbomind(folder: Path) -> set[str]:
    return keys_of(folder / "turbomind" / "supported_models.py", "SUPPORTED_ARCHS")


def lmdeploy(folder: Path) -> set[str]:
    modules = keys_of(folder / "pytorch" / "models" / "module_map.py", "MODULE_MAP")
    return modules | turbomind(folder)


def tensorrt_llm(folder: Path) -> set[str]:
    return keys_of(folder / "_torch" / "models" / "_arch_index.py", "MODEL_ARCH_TO_MODULE")


def tgi(folder: Path) -> set[str]:
    text = (folder / "models" / "__init__.py").read_text("utf-8")
    compared = re.findall(r'model_type == "([\w-]+)"', text)
    return {*re.findall(r'"type": "([\w-]+)"', text), *compared, "RefinedWeb", "RefinedWebModel"}


def lightllm(folder: Path) -> set[str]:
    found: set[str] = set()
    for file in (folder / "models").rglob("model.py"):
        for listed in re.findall(
            r"@ModelRegistry\((\[[^]]*\]|\"[^\"]*\")", file.read_text("utf-8")
        ):
            found |= set(re.findall(r'"([^"]+)"', listed))
    return found


# What an engine chooses its code by: class names in ``architectures``, or ``model_type``.
READERS: dict[str, tuple[str, Callable[[Path], set[str]]]] = {
    "vllm": ("architectures", vllm),
    "sglang": ("architectures", sglang),
    "lmdeploy": ("architectures", lmdeploy),
    "tensorrt_llm": ("architectures", tensorrt_llm),
    "tgi": ("model_type", tgi),
    "lightllm": ("model_type", lightllm),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engine", choices=READERS)
    parser.add_argument("version", help="release that the lists are of")
    parser.add_argument("folders", nargs="+", type=Path)
    given = parser.parse_args()
    chosen_by, read = READERS[given.engine]
    names = set().union(*(read(folder) for folder in given.folders))
    record = {"version": given.version, "chosen_by": chosen_by, "names": sorted(names)}
    if given.engine == "lmdeploy":
        record["turbomind"] = sorted(set().union(*(turbomind(one) for one in given.folders)))
    known = json.loads(OUT.read_text("utf-8")) if OUT.exists() else {}
    known[given.engine] = record
    lines = [f"  {json.dumps(name)}: {json.dumps(known[name])}" for name in sorted(known)]
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    print(f"{given.engine} {given.version}: {len(names)} in {OUT}")


if __name__ == "__main__":
    main()
