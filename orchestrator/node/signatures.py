"""Signatures of failures that several engines log: messages of Python, torch, CUDA, compilers, the
hub, the operating system and container runtimes.

An engine's own messages are in its file (``LogWords``). Each signature has the kind of failure, a
pattern that recognizes the line, and a line that was seen. The kind decides whether a launch is
tried again (``FailureKind.failure_class``). The kind, and whether a signature is vague, decide in
which order signatures are looked for (``Weight``).
"""

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

from orchestrator.base.errors import FailureClass, FailureKind


class Weight(IntEnum):
    """The order of causes: a failure of a later weight may be a consequence of an earlier one."""

    OUTSIDE = 1  # the node or the hub
    REASON = 2
    LOST_RANK = 3  # may follow from a reason that another rank has
    REFUSAL = 4  # reports only that something was refused or went wrong
    DEATH = 5  # a process reports that another one died


_WEIGHTS = {
    **dict.fromkeys(
        (
            FailureKind.GPU_FAULT,
            FailureKind.HUB,
            FailureKind.DISK_FULL,
            FailureKind.NODE_LIMIT,
        ),
        Weight.OUTSIDE,
    ),
    FailureKind.DIST: Weight.LOST_RANK,
    FailureKind.ENGINE_DEAD: Weight.DEATH,
}
# Kinds that count only before an engine serves: later a single request may cause the same messages.
_BEFORE_SERVING = frozenset(
    {
        FailureKind.GPU_DIRTY,
        FailureKind.OOM_KV,
        FailureKind.BAD_FLAG,
        FailureKind.BAD_QUANT,
        FailureKind.HUB,
        FailureKind.BAD_MODEL,
        FailureKind.NO_MODEL,
        FailureKind.PORT_TAKEN,
        FailureKind.BAD_CONFIG,
        FailureKind.DRIVER,
        FailureKind.NO_ADDRESS,
    }
)


@dataclass(frozen=True)
class Signature:
    """A pattern by which a line of a log shows one kind of failure."""

    kind: FailureKind
    pattern: str
    example: str
    is_vague: bool = False  # a refusal of any kind: every other signature is more specific
    is_header: bool = False  # the reason stands in the lines below it
    while_serving: bool = False  # no single request can cause it, so it counts after readiness too

    @property
    def failure_class(self) -> FailureClass:
        return self.kind.failure_class

    @property
    def weight(self) -> Weight:
        return Weight.REFUSAL if self.is_vague else _WEIGHTS.get(self.kind, Weight.REASON)

    @property
    def counts_while_serving(self) -> bool:
        return self.while_serving or self.kind not in _BEFORE_SERVING

    @cached_property
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    def is_in(self, text: str) -> bool:
        return self.regex.search(text) is not None


def of_engine(kind: FailureKind, pattern: str) -> Signature:
    """A signature of an engine's own messages, whose examples are with its recordings."""
    return Signature(kind, pattern, "", is_vague=kind is FailureKind.BAD_CONFIG)


# Lines that show that the hub answered: then lines about a connection are only consequences.
HUB_ANSWERED = re.compile(
    r"Client error '40[134] |40[134] Client Error|gated repo|Access to model .* is restricted"
)
HUB_UNREACHABLE = r"check your (?:internet )?connection|We couldn't connect to"

# infra: the node, its GPUs, its driver, the network. Tried again, on another node if one is free.
_INFRA = (
    Signature(
        FailureKind.GPU_FAULT,
        r"uncorrectable (?:ECC|NVLink) error|ECC error encountered|fallen off the bus|GPU is lost"
        r"|Unable to determine the device handle",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    ),
    Signature(
        FailureKind.GPU_FAULT,
        r"busy or unavailable|system not yet initialized",
        "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    ),
    Signature(
        FailureKind.GPU_FAULT,
        r"no (?:CUDA|ROCm)-capable device is detected|CUDA_ERROR_NO_DEVICE|hipErrorNoDevice"
        r"|No (?:CUDA|HIP|ROCm) GPUs are available|Error: CUDA is not available"
        r"|torch\.cuda\.is_available\(\) is False",
        "RuntimeError: HIP error: no ROCm-capable device is detected",
    ),
    Signature(
        FailureKind.GPU_FAULT,
        r"CUDA unknown error|(?:CUDA|HIP)\b.* (?:unknown|initialization) error"
        r"|(?:Error|failure) \d+: (?:unknown|initialization) error"
        r"|CUDA_ERROR_(?:UNKNOWN|NOT_INITIALIZED|SYSTEM_NOT_READY)|Failed to initialize NVML",
        "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment,"
        " e.g. changing env variable CUDA_VISIBLE_DEVICES after program start.",
    ),
    Signature(
        FailureKind.GPU_FAULT,
        r"Failed to infer device type|No accelerator \([^)]*\) is available|0 active drivers \("
        r"|Device string must not be empty",
        "RuntimeError: Failed to infer device type, please set the environment variable"
        " `VLLM_LOGGING_LEVEL=DEBUG` to turn on verbose logging to help debug the issue.",
    ),
    Signature(
        FailureKind.GPU_FAULT,
        r"invalid device ordinal|Invalid device id\b|GPU requires reset"
        r"|could not select device driver .* with capabilities|[Uu]nable to open /dev/kfd"
        r"|unresolvable CDI devices|Unable to find any GPUs?\b",
        'docker: Error response from daemon: could not select device driver "" with'
        " capabilities: [[gpu]].",
    ),
    Signature(
        FailureKind.DRIVER,
        r"NVIDIA driver on your system is too old|CUDA driver version is insufficient"
        r"|cudaErrorInsufficientDriver|not supported in the installed CUDA driver"
        r"|driver is (?:too old|older than)|unsatisfied condition: (?:cuda|driver)"
        r"|PTX was compiled with an unsupported toolchain",
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12020).",
    ),
    Signature(
        FailureKind.DRIVER,
        r"Found no NVIDIA driver|unsupported display driver / cuda driver combination"
        r"|forward compatibility was attempted|[Dd]river/library version mismatch"
        r"|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH|CUDA driver initialization failed"
        r"|NVML Shared Library Not Found|NVML_ERROR_(?:DRIVER|LIB)|nvidia-container-cli: "
        r"|NVMLError_(?:Driver|Lib)|couldn't communicate with the NVIDIA driver|hsa_init",
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has"
        " unsupported display driver / cuda driver combination",
    ),
    Signature(
        FailureKind.DRIVER,
        r"\blib[\w.+-]+\.so[\w.]*: cannot open shared object file"
        r"|Could not load (?:dynamic )?library '?lib|Unable to load any of \{?'?libcu"
        r"|version `(?:GLIBC|GLIBCXX|CXXABI)_[\d.]+' not found|libcuda\.so(?:\.1)? (?:cannot|not) "
        r"|libcudart is not loaded|undefined symbol: _*(?:cuda|cu[A-Z]|nccl|cublas|cusparse"
        r"|nvJitLink)"
        r"|Torch not compiled with CUDA enabled|PyTorch was compiled without CUDA",
        "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
    ),
    Signature(
        FailureKind.HUB,
        rf"{HUB_UNREACHABLE}|Max retries exceeded with url|Consistency check failed: file should"
        r"|429 (?:Client Error|Too Many Requests)|50\d Server Error.*for url"
        r"|IncompleteRead\(|peer closed connection without sending complete message body",
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files",
    ),
    Signature(
        FailureKind.HUB,
        r"Temporary failure in name resolution|Could not resolve host"
        r"|(?:Timeout|ConnectionError|ConnectError|NameResolutionError)\b.*(?:huggingface|hf\.co"
        r"|Hub\b)",
        "httpx.ConnectError: [Errno -3] Temporary failure in name resolution",
    ),
    Signature(
        FailureKind.DISK_FULL,
        r"No space left on device|Disk quota exceeded",
        "OSError: [Errno 28] No space left on device",
    ),
    Signature(
        FailureKind.NODE_LIMIT,
        # in brackets, "Cannot allocate memory" is torch's message about a requested size
        r"(?<!\()Cannot allocate memory|Too many open files|can't start new thread"
        r"|pthread_create.*Resource temporarily unavailable|insufficient shared memory \(shm\)",
        "OSError: [Errno 24] Too many open files: '/dev/shm/x'",
    ),
    Signature(
        FailureKind.NO_ADDRESS,
        r"[Cc]annot assign requested address|EADDRNOTAVAIL|AddrNotAvailable",
        "ERROR:    [Errno 99] error while attempting to bind on address ('10.0.0.1', 21001):"
        " cannot assign requested address",
    ),
    Signature(
        FailureKind.PORT_TAKEN,
        r"[Aa]ddress already in use|EADDRINUSE|AddrInUse",
        "OSError: [Errno 98] Address already in use",
    ),
    Signature(
        FailureKind.IMAGE_PULL,
        r"Unable to find image|pull access denied|manifest unknown|failed to pull"
        r"|Cannot connect to the Docker daemon|initializing source docker:"
        r"|did not resolve to an alias|container-init binary not found"
        r"|FATAL: +(?:Unable to handle \w+://|While checking container|while extracting"
        r"|container creation failed)",
        "docker: Error response from daemon: pull access denied for nosuch/image",
    ),
    Signature(
        FailureKind.DIST,
        r"NCCL error|nccl(?:System|Internal|Remote|UnhandledCuda)Error|Gloo connect"
        r"|Timeout.*ProcessGroup|Watchdog caught collective operation timeout"
        r"|Dist(?:Store|Network|Backend)Error",
        "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms",
    ),
)
# bad_config: the same everywhere, so it is not tried again.
_BAD_CONFIG = (
    Signature(
        FailureKind.OOM_KV,
        r"larger than the maximum number of tokens that can be stored in (?:the )?KV cache",
        "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens"
        " that can be stored in KV cache (60432). Try increasing `gpu_memory_utilization`.",
    ),
    Signature(
        FailureKind.OOM_LOAD,
        r"(?:CUDA|HIP|XPU|NPU|MUSA) out of memory|OutOfMemoryError\b"
        r"|(?:CUDA|HIP)(?: runtime)? error(?: 2)?: out of memory|cudaErrorMemoryAllocation"
        r"|CUBLAS_STATUS_ALLOC_FAILED|DefaultCPUAllocator: can't allocate memory|std::bad_alloc",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    ),
    Signature(
        FailureKind.BAD_FLAG,
        r"unrecognized arguments?:|invalid choice:|error: argument "
        r"|error: the following arguments are required|error: unexpected argument"
        r"|error: invalid (?:value|argument)|No such option|Error: Invalid value for",
        "vllm: error: unrecognized arguments: --no-such-flag",
    ),
    Signature(
        FailureKind.BAD_MODEL,
        r"[Tt]ransformers does not recognize this architecture|Unrecognized model in "
        r"|has no vLLM implementation|[Tt]okenizer class \w+ does not exist"
        r"|data did not match any variant of untagged enum|Unrecognized configuration class",
        "ValueError: The checkpoint you are trying to load has model type `exotic` but Transformers"
        " does not recognize this architecture.",
    ),
    Signature(
        FailureKind.NO_MODEL,
        r"gated repo|GatedRepo|Access to model .* is restricted|not in the authorized list"
        r"|awaiting a review from the repo authors|Invalid user token|Invalid username or password"
        r"|gated repositor|40[13] Forbidden|Unauthorized for url|failed to access model"
        r"|40[13] Client Error|Client error '40[13] |(?:status code:?|[Ss]tatus\(|response code:) "
        r"?40[134]",
        "OSError: You are trying to access a gated repo.",
    ),
    Signature(
        FailureKind.NO_MODEL,
        r"Client error '404 |404 Client Error|HFValidationError|RepositoryNotFound"
        r"|RevisionNotFound|EntryNotFound|Repo id must|does not appear to have (?:a file|files) "
        r"named"
        r"|is not a local folder and is not a valid model|Can't load the (?:configuration"
        r"|tokenizer)"
        r"|No such file or directory: '[^']*(?:config\.json|\.safetensors|\.gguf)"
        r"|not a valid JSON file|is not a valid model identifier|Error no file named",
        "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error.",
    ),
    Signature(
        FailureKind.NO_MODEL,
        # cut downloads, and pointers of Git LFS instead of files
        r"SafetensorError|MetadataIncompleteBuffer|HeaderTooLarge|InvalidHeaderDeserialization"
        r"|incomplete metadata, file not fully covered|PytorchStreamReader failed"
        r"|invalid load key, 'v'|Error while deserializing header|sentencepiece_processor\.cc"
        r"|Unable to load weights from pytorch checkpoint",
        "safetensors_rust.SafetensorError: Error while deserializing header:"
        " MetadataIncompleteBuffer",
    ),
    Signature(
        FailureKind.NO_EXECUTABLE,
        r"executable file not found in \$PATH",
        'FATAL:   "nope": executable file not found in $PATH',
    ),
    Signature(
        FailureKind.NO_COMPILER,
        r"InvalidCxxCompiler|No working C\+\+ compiler|Failed to find C(?:\+\+)? compiler"
        r"|Could not find nvcc|(?:nvcc|ninja|hipcc|cicc|gcc|g\+\+|c\+\+|cc1plus)'?: (?:command "
        r")?not"
        r" found|No such file or directory: '[^']*\b(?:nvcc|ninja|hipcc|cicc|gcc|g\+\+|c\+\+"
        r"|ptxas)'"
        r"|Ninja is required to load|CUDA_HOME\b.* is not set"
        r"|assert cuda_home is not None",
        "/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found",
    ),
    Signature(
        FailureKind.NO_COMPILER,
        r"(?:nvcc|ptxas) fatal *:|fatal error: \S+\.\w+: No such file|(?:ld|collect2): cannot "
        r"find -l"
        r"|\.(?:cu|cuh|c|cc|cpp|h|hpp)(?:\(\d+\)|:\d+(?::\d+)?): (?:fatal )?error\b"
        r"|#error -- unsupported|detected CUDA version .* mismatches"
        r"|(?:gcc|g\+\+|c\+\+|clang|clang\+\+|nvcc|cc1plus)(?:-\d+)?: (?:fatal )?error: ",
        "nvcc fatal   : Unsupported gpu architecture 'compute_120a'",
    ),
    Signature(
        FailureKind.NO_COMPILER,
        r"Ninja build failed|ninja: build stopped|Error building extension '"
        r"|Error compiling objects for extension|NVCC compil\w+ failed|nvrtc: error"
        r"|Triton PTX codegen error|PTXASError|`ptxas` failed"
        r"|CalledProcessError: Command .*(?:gcc|g\+\+|c\+\+|clang|nvcc|ninja|hipcc|ptxas)\b",
        "RuntimeError: Ninja build failed. Ninja output:",
        is_header=True,
    ),
    Signature(
        FailureKind.ILLEGAL_INSTRUCTION,
        r"exit code:? -4\b|SIGILL|Illegal instruction",
        "Worker proc VllmWorker-0 died unexpectedly (exit code: -4), shutting down.",
    ),
    # GPUs that are too old or too new for a kernel
    Signature(
        FailureKind.BAD_CONFIG,
        r"no kernel image is available|error: invalid device function|kernel image is invalid"
        r"|hipErrorNoBinaryForGpu|cudaErrorNoKernelImageForDevice",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        while_serving=True,
    ),
    Signature(
        FailureKind.BAD_CONFIG,
        r"only supports? (?:\w+ )?(?:Ampere|Ada|Hopper|Blackwell|[Ss][Mm]_?\d+)"
        r"|only supported on (?:\w+ )?(?:GPUs|devices|Ampere|Hopper|Blackwell|[Ss][Mm]_?\d+)"
        r"|[Uu]nsupported (?:GPU |CUDA |SM )?[Aa]rch(?:itecture)?\b(?! \[)"
        r"|not supported (?:in|on|by|for) (?:this|your|the current) (?:GPU|device|arch\w*|hardware)"
        r"|requires? (?:a )?(?:GPU|device|NVIDIA GPU)s? with (?:compute )?capability"
        r"|pre SM ?\d+ GPUs do not support|requires \.target sm_\d+|too old to be supported"
        r"|No supported CUDA architectures found|[Uu]nsupported compute capability"
        r"|GPU with CUDA capability [\d. ]+ is not supported|Unknown CUDA arch"
        r"|Error: .*(?:only supported|not supported|requires?|at least|minimum) .*(?:[Ss][Mm] "
        r"?[_<>=]*\d\d"
        r"|[Cc]apability|Turing|Ampere|Ada|Hopper|Blackwell)\b"
        r"|Error: Flash(?:Attention|Infer|MLA).* (?:only supports?|does not support) ",
        "RuntimeError: FlashAttention only supports Ampere GPUs or newer.",
        while_serving=True,
    ),
    # kernels that need more than a GPU has
    Signature(
        FailureKind.BAD_CONFIG,
        r"OutOfResources\b|out of resource: |too many resources requested for launch"
        r"|uses too much shared data|dynamic shared memory size|[Ii]nsufficient shared memory(?! "
        r"\(shm\))",
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 106496,"
        " Hardware limit: 101376. Reducing block sizes or `num_stages` may help.",
        while_serving=True,
    ),
    Signature(
        FailureKind.BAD_CONFIG,
        r"triton\.compiler\.errors\.CompilationError",
        "triton.compiler.errors.CompilationError: at 43:8:",
        is_header=True,
        while_serving=True,
    ),
    Signature(
        FailureKind.BAD_CONFIG,
        r"\d+ validation errors? for \w+",
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig",
        is_vague=True,
        is_header=True,
    ),
    Signature(
        FailureKind.BAD_CONFIG,
        r"ValueError: |NotImplementedError: |[Ee]rror\b.* not supported"
        # other assertions are bugs of the engine
        r"|AssertionError: .*(?:divisible|must be|must >=|not support|only support|invalid \w+$)",
        "NotImplementedError: sharded is not supported for AutoModel",
        is_vague=True,
    ),
)
# engine_crash: tried once more.
_ENGINE_CRASH = (
    Signature(
        FailureKind.ENGINE_DEAD,
        r"(?:mpirun|mpiexec|prterun) noticed that process rank",
        "mpirun noticed that process rank 0 with PID 0 on node x exited on signal 11"
        " (Segmentation fault).",
    ),
)
COMMON = (*_INFRA, *_BAD_CONFIG, *_ENGINE_CRASH)
