"""Prints which engines have a newer release than is known here, and what its parser changed.

    make newest

asks the package index with pip. For an engine whose parser can be asked (vLLM, SGLang, transformers,
the routers) and whose environment is in ``.engines``, the newer wheel is fetched without what it
requires, unpacked beside and read. Exit status: 0 all current, 1 something is newer, 2 the index did
not answer. Only the standard library is used.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from record_flags import READERS, NotRead, read

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "orchestrator" / "engines" / "recorded"
# engine -> its package on the index; llama.cpp and LightLLM are known by their commits
PACKAGES = {
    "vllm": "vllm",
    "sglang": "sglang",
    "transformers": "transformers",
    "lmdeploy": "lmdeploy",
    "tensorrt_llm": "tensorrt-llm",
    "vllm_router": "vllm-router",
    "sglang_router": "sglang-router",
}
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
LIMIT_S = 900


def newest_of(package: str) -> str | None:
    """The newest release on the index, None if the index does not tell."""
    argv = [*PIP, "index", "versions", package]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    _, parenthesis, rest = done.stdout.partition("(")
    return rest.partition(")")[0] if done.returncode == 0 and parenthesis else None


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split("+")[0].split(".") if part.isdigit()]


def record_of(engine: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((RECORDED / f"{engine}.json").read_text("utf-8"))
    return record


def unpacked(package: str, version: str, folder: Path) -> Path:
    """The Python of a wheel, without what is compiled. Its version says CPU, as our environments
    do: vLLM chooses its platform by it. Raises CalledProcessError.
    """
    argv = [*PIP, "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    subprocess.run([*argv, f"{package}=={version}"], check=True, timeout=LIMIT_S)
    target = folder / "packages"
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(target, [name for name in wheel.namelist() if not name.endswith(".so")])
    if package == "vllm":
        for metadata in target.glob("vllm-*.dist-info/METADATA"):
            text = metadata.read_text("utf-8")
            metadata.write_text(text.replace(f"Version: {version}", f"Version: {version}+cpu", 1))
    return target


def spellings(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        spelling: flag
        for name, flag in record["flags"].items()
        for spelling in (name, *flag.get("also", ()))
    }


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What a release changed, a line for each flag that came, went or takes other values, and for
    each API that came, went or whose requests have other fields.
    """
    old, new = spellings(before), spellings(after)
    lines = [f"gone: {name}" for name in sorted(old.keys() - new.keys())]
    lines += [f"new: {name}" for name in sorted(new.keys() - old.keys())]
    for name in sorted(old.keys() & new.keys()):
        if old[name]["kind"] != new[name]["kind"]:
            lines.append(f"{name}: {old[name]['kind']} -> {new[name]['kind']}")
        for key in ("choices", "keys"):
            was, now = set(old[name].get(key, ())), set(new[name].get(key, ()))
            if was != now:
                lines.append(f"{name} {key}: gone {sorted(was - now)}, new {sorted(now - was)}")
    fields_before = before.get("request_fields", {})
    fields_after = after.get("request_fields", {})
    lines += [f"gone: requests of {api}" for api in sorted(fields_before.keys() - fields_after)]
    lines += [f"new: requests of {api}" for api in sorted(fields_after.keys() - fields_before)]
    for api in sorted(fields_before.keys() & fields_after):
        was, now = set(fields_before[api]), set(fields_after[api])
        if was != now:
            lines.append(f"requests of {api}: gone {sorted(was - now)}, new {sorted(now - was)}")
    return lines


def changed_in(engine: str, version: str) -> list[str]:
    environment = ROOT / ".engines" / engine
    if engine not in READERS:
        return ["its parser is not read here: look at its source"]
    if not (environment / "bin" / "python").exists():
        return [f"{environment} is not there to ask its parser: make engines"]
    with tempfile.TemporaryDirectory() as folder:
        try:
            packages = unpacked(PACKAGES[engine], version, Path(folder))
            return changes(record_of(engine), read(engine, environment, packages))
        except (NotRead, subprocess.SubprocessError, OSError) as error:
            return [f"its parser could not be asked: {error}"]


def main() -> int:
    status = 0
    print(f"{'engine':<14} {'known':<12} {'newest':<12}")
    for engine, package in PACKAGES.items():
        known, newest = record_of(engine)["version"], newest_of(package)
        print(f"{engine:<14} {known:<12} {newest or 'not told':<12}", flush=True)
        if newest is None:
            status = 2
        elif numbers(newest)[: len(numbers(known))] > numbers(known):
            status = max(status, 1)
            print("".join(f"  {line}\n" for line in changed_in(engine, newest)), end="", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
