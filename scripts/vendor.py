"""Fetches the chart library of the report page, untouched, and checks it against npm's own hash.

python scripts/vendor.py            the version of LOCK.json
python scripts/vendor.py 6.2.0      another one: LOCK.json then names it
"""

import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "orchestrator/report/page/vendor"
FILES = ("dist/echarts.min.js", "LICENSE", "NOTICE", "licenses/LICENSE-d3")


def main() -> None:
    lock = FOLDER / "LOCK.json"
    locked = json.loads(lock.read_text()) if lock.exists() else {}
    version = sys.argv[1] if len(sys.argv) > 1 else locked["version"]
    name = f"echarts@{version}"
    view = subprocess.run(
        ["npm", "view", name, "dist.integrity"], check=True, capture_output=True, text=True
    )
    integrity = view.stdout.strip()
    if version == locked.get("version") and integrity != locked["integrity"]:
        sys.exit(f"{name} is not the package that LOCK.json names: {integrity}")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["npm", "pack", "--silent", name], check=True, cwd=folder, stdout=subprocess.DEVNULL
        )
        (packed,) = Path(folder).glob("*.tgz")
        digest = base64.b64encode(hashlib.sha512(packed.read_bytes()).digest()).decode()
        if integrity != f"sha512-{digest}":
            sys.exit(f"{name} arrived damaged: sha512-{digest}, not {integrity}")
        with tarfile.open(packed) as archive:
            for file in FILES:
                content = archive.extractfile(f"package/{file}")
                assert content is not None, file
                (FOLDER / Path(file).name).write_bytes(content.read())
    script = hashlib.sha256((FOLDER / "echarts.min.js").read_bytes()).hexdigest()
    new_lock = {"package": "echarts", "version": version, "integrity": integrity, "sha256": script}
    lock.write_text(json.dumps(new_lock, indent=2) + "\n")
    print(f"{name}: {', '.join(Path(file).name for file in FILES)} in {FOLDER}")


if __name__ == "__main__":
    main()
