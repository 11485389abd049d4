"""Hashes the content of checkpoints in less than a second, however large they are.

Small files and small tensors are read whole, since scales, zero points, norms and biases decide
what a checkpoint answers and are a fraction of its bytes. Large tensors are read in samples. Where
tensors lie is read from the headers of safetensors and GGUF files; PyTorch's own files end with a
directory that has a checksum of every tensor.
"""

import hashlib
import json
import os
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, NamedTuple

WHOLE_FILE_BYTES = 64 << 20  # a file up to this size is read whole: 0.07 s
WHOLE_TENSOR_BYTES = 1 << 20  # a tensor below this size is read whole
# At most so many bytes of small tensors of a model are read whole, the smallest tensors first:
# experts in 4 bits are small and many.
WHOLE_TENSORS_BYTES = 512 << 20
# A fine-tune that changes one layer in ten escapes 64 samples in one case of 850.
SAMPLES = 64  # how many samples of a file are read
SAMPLE_BYTES = 4096
END_BYTES = 256 << 10  # read at the start of a file, and at its end
GAP_BYTES = 64 << 10  # two spans with no more than this between them are read as one
MOST_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
PIECE_BYTES = 4 << 20  # read at a time
THREADS = 8


class Span(NamedTuple):
    """Bytes of a file, from ``start`` up to ``end``, without ``end``."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def files_digest(files: Sequence[Path]) -> dict[str, str | None]:
    """``checkpoint_digest`` of each file of a model, by the file's name, in the order given."""
    whole_bytes = WHOLE_TENSORS_BYTES // max(1, len(files))
    with ThreadPoolExecutor(min(THREADS, max(1, len(files)))) as threads:
        digests = threads.map(lambda file: checkpoint_digest(file, whole_bytes), files)
        return dict(zip((file.name for file in files), digests, strict=True))


def checkpoint_digest(path: Path, whole_bytes: int = WHOLE_TENSORS_BYTES) -> str | None:
    """16 hex digits of a hash over the content of one file with weights. None for a file that
    cannot be read or is not a regular one.

    ``whole_bytes``: at most so many bytes of small tensors are read whole.
    """
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            content = hashlib.sha256(str(size).encode())
            for span in _spans(path, file, size, whole_bytes):
                for start in range(span.start, span.end, PIECE_BYTES):
                    length = min(PIECE_BYTES, span.end - start)
                    content.update(os.pread(file.fileno(), length, start))
    except OSError:
        return None
    return content.hexdigest()[:16]


def _spans(path: Path, file: BinaryIO, size: int, whole_bytes: int) -> list[Span]:
    """The spans that are read of a file, in order and without overlap."""
    if size <= WHOLE_FILE_BYTES:
        return [Span(0, size)]
    spans = [Span(0, END_BYTES), Span(size - END_BYTES, size)]
    spans += [_sample(Span(0, size), index / (SAMPLES - 1)) for index in range(SAMPLES)]
    layout = _layout(path, file, size)
    spans.append(Span(0, layout.header_end))
    for tensor in sorted(layout.tensors, key=lambda tensor: tensor.size):
        if tensor.size < WHOLE_TENSOR_BYTES and tensor.size <= whole_bytes:
            whole_bytes -= tensor.size
            spans.append(tensor)
        else:
            spans.append(_sample(tensor, 0.5))
    return _joined(spans)


def _sample(span: Span, place: float) -> Span:
    """A sample of a span; ``place`` is from 0, its start, to 1, its end."""
    start = span.start + round(place * max(0, span.size - SAMPLE_BYTES))
    return Span(start, min(span.end, start + SAMPLE_BYTES))


def _joined(spans: Sequence[Span]) -> list[Span]:
    """The spans in order of their start, those that touch or nearly touch as one."""
    joined: list[Span] = []
    for span in sorted(spans):
        if joined and span.start - joined[-1].end <= GAP_BYTES:
            joined[-1] = Span(joined[-1].start, max(joined[-1].end, span.end))
        else:
            joined.append(span)
    return joined


class _TensorLayout(NamedTuple):
    """Where the header of a file ends, and where its tensors lie."""

    header_end: int
    tensors: list[Span]


# for files of other formats, and for a header that does not describe its file
_NO_LAYOUT = _TensorLayout(0, [])


def _layout(path: Path, file: BinaryIO, size: int) -> _TensorLayout:
    if path.suffix == ".gguf":
        from orchestrator.catalog.gguf import tensor_offsets  # few models need it

        offsets = tensor_offsets(path)
        if offsets is None:
            return _NO_LAYOUT
        starts = sorted({start for start in offsets.starts if start < size})
        if not starts:
            return _TensorLayout(offsets.header_end, [])
        ends = [*starts[1:], size]
        tensors = [Span(start, end) for start, end in zip(starts, ends, strict=True)]
        return _TensorLayout(offsets.header_end, tensors)
    if path.suffix == ".safetensors":
        return _safetensors_layout(file, size)
    return _NO_LAYOUT


def _safetensors_layout(file: BinaryIO, size: int) -> _TensorLayout:
    try:
        (length,) = struct.unpack("<Q", file.read(8))
        header_end = 8 + length
        if length > MOST_HEADER_BYTES or header_end > size:
            return _NO_LAYOUT
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        offsets = [tensor["data_offsets"] for tensor in header.values()]
        spans = [Span(header_end + start, header_end + end) for start, end in offsets]
    except (struct.error, ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return _NO_LAYOUT
    if any(not header_end <= span.start <= span.end <= size for span in spans):
        return _NO_LAYOUT
    return _TensorLayout(header_end, spans)
