"""Turns a results URI into a pyarrow filesystem and a folder. Secrets come from the environment,
never from the URI.
"""

import os
import socket
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from pyarrow import fs

from orchestrator.base.errors import InputError, Problem, ProblemsError
from orchestrator.base.retry import RetryPolicy, retried
from orchestrator.spec.document import from_home

_S3_OPTIONS = {"endpoint_override", "scheme", "region", "force_virtual_addressing", "anonymous"}
_GS_OPTIONS = {"endpoint_override", "scheme", "anonymous", "project_id"}
_OPTIONS = {"s3": _S3_OPTIONS, "gs": _GS_OPTIONS}
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_SECRET_WORDS = ("key", "secret", "token", "password", "credential", "signature")
# scheme -> where its credentials belong
_HELP = {
    "s3": "put them into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or the node's role",
    "gs": "point GOOGLE_APPLICATION_CREDENTIALS at a file or use the node's service account",
}

_AWS_HOST = "s3.us-east-1.amazonaws.com"  # it knows the region of every bucket
ANSWER_LIMIT_S = 8.0  # for a storage that a command is about to use
FIRST_ANSWER = RetryPolicy(first_pause_s=1.0, longest_pause_s=1.0)
LAST_TRY_S = 2.0  # no try begins this shortly before the limit
_TLS_HINT = "is its certificate trusted here (AWS_CA_BUNDLE), and does it speak TLS?"
# Words of errors that no second try mends -> what to look at
_LASTING_ERRORS = {
    "resolve host": "is its name right, and is there a network?",
    "NO_SUCH_BUCKET": "is the bucket's name right? It is not created for you",
    "ACCESS_DENIED": "are there credentials, and may they use it?",
    "INVALID_ACCESS_KEY": "are the credentials right?",
    "SIGNATURE_DOES_NOT_MATCH": "are the credentials right?",
    "PermissionDenied": "are there credentials, and may they use it?",
    "Could not create a OAuth2 access token": "are there credentials?",
    "Bucket '": "is the bucket's name right?",
    "curlCode: 35,": _TLS_HINT,  # of libcurl: the handshake failed
    "curlCode: 60,": _TLS_HINT,  # the certificate is not trusted
    "curlCode: 77,": _TLS_HINT,  # the file of certificates cannot be read
}
# Words of the error where nothing listens at the address. It is tried again, because the server may
# be starting. (A server that is only busy accepts connections and lets them time out.)
_UNREACHED = "curlCode: 7,"
_UNREACHED_HINT = "is it up, is its address right, and is there a network?"


@dataclass(frozen=True, slots=True)
class Location:
    """Where results are stored. ``uri`` is canonical, contains no secret, and means the same in
    another process.
    """

    scheme: str  # file | s3 | gs
    path: str  # absolute path, or bucket/prefix
    options: tuple[tuple[str, str], ...] = ()

    @property
    def uri(self) -> str:
        if self.is_local:
            return self.path
        query = f"?{urlencode(self.options, safe=':/')}" if self.options else ""
        return f"{self.scheme}://{quote(self.path)}{query}"

    @property
    def is_local(self) -> bool:
        return self.scheme == "file"

    def filesystem(self) -> fs.FileSystem:
        """A fresh filesystem with short timeouts. It repeats a refused call once; further tries are
        those of blobs.py.
        """
        if self.is_local:
            return fs.LocalFileSystem()
        options: dict[str, Any] = dict(self.options)
        for name in ("anonymous", "force_virtual_addressing"):
            if name in options:
                options[name] = options[name].lower() in ("1", "true", "yes")
        return _gcs(options) if self.scheme == "gs" else _s3(self.path, options)


def uri_inside(uri: str, name: str) -> str:
    """The URI of what is stored by this name in the folder of ``uri``. Options stay at its end."""
    folder, separator, options = uri.partition("?") if "://" in uri else (uri, "", "")
    return f"{folder.rstrip('/')}/{name}{separator}{options}"


def check_answers(uri: str, limit_s: float = ANSWER_LIMIT_S) -> None:
    """Checks that an object store answers, and that a local path is no file, before a command uses it.

    Takes at most ``limit_s``. Raises InputError for a storage that does not answer or cannot be
    used. A storage that is only busy passes, because blobs.py tries real calls again.
    """
    location = parse_location(uri)
    if location.is_local:
        _check_folder(Path(location.path))
        return
    problems: list[str] = []

    def ask() -> None:
        problem = _problem_of(location, limit_s)
        if problem is not None:
            problems.append(problem)

    # in a thread, because Google's library tries for minutes, whatever its time limit is
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(limit_s)
    if asking.is_alive():
        raise InputError(
            f"{location.uri} has not answered for {limit_s:g} s: is there a network, and are there"
            f" credentials? {_HELP[location.scheme]}"
        )
    if problems:
        raise InputError(problems[0])


def _check_folder(path: Path) -> None:
    """Raises InputError where a file stands in the place of the folder or of one above it."""
    for place in (path, *path.parents):
        if place.is_dir():
            return
        if place.exists():
            raise InputError(f"{place} is a file, and results are in a folder: give another place")


def _problem_of(location: Location, limit_s: float) -> str | None:
    """Asks an object store, and says why it cannot be used. None: it can, or it is only busy."""
    policy = replace(FIRST_ANSWER, limit_s=limit_s - LAST_TRY_S)
    try:
        retried(
            lambda: location.filesystem().get_file_info(location.path),
            policy,
            is_passing=_is_worth_another_try,
        )
    except InputError as error:
        return str(error)
    except OSError as error:
        hint = hint_of(error)
        if hint is None and _UNREACHED in str(error):
            hint = _UNREACHED_HINT
        if hint is not None:
            return f"{location.uri} cannot be used: {_one_line(error)}; {hint}"
    return None


def _one_line(error: OSError) -> str:
    return " ".join(str(error).split())


def hint_of(error: OSError) -> str | None:
    """What to look at, for an error that no second try mends; None for other errors."""
    text = _one_line(error)
    for words, hint in _LASTING_ERRORS.items():
        if words in text:
            return hint
    return None


def _is_worth_another_try(error: BaseException) -> bool:
    return isinstance(error, OSError) and hint_of(error) is None


def parse_location(uri: str) -> Location:
    """Parse a local path, ``file://…``,
    ``s3://bucket/prefix?endpoint_override=…&scheme=http&region=…`` or ``gs://…``.

    Raises InputError for an unknown scheme or option, no bucket, or credentials in the URI, which
    it does not repeat.
    """
    scheme, separator, _ = uri.partition("://")
    if not separator:
        return _local(uri)
    if scheme == "file":
        return _local(unquote(urlsplit(uri).path))
    if scheme not in _OPTIONS:
        raise InputError(
            f"results URI scheme {scheme!r} is not known; use a local path, file://, s3:// or gs://"
        )
    return _object_store(uri, scheme)


def _local(path: str) -> Location:
    if not path:
        raise InputError("the results URI is empty; give a folder, or s3://bucket/prefix")
    return Location(scheme="file", path=os.path.abspath(from_home(path)))


def _object_store(uri: str, scheme: str) -> Location:
    parts = urlsplit(uri)
    bucket = parts.netloc.rpartition("@")[2]
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if scheme == "s3":
        options = _endpoint(options)
    hosts = (parts.netloc, options.get("endpoint_override", ""))
    has_user = any("@" in host for host in hosts)
    problems = [Problem(text) for text in _uri_problems(scheme, bucket, has_user, options)]
    if problems:
        raise ProblemsError(problems)
    path = "/".join([bucket, *(part for part in unquote(parts.path).split("/") if part)])
    return Location(scheme=scheme, path=path, options=tuple(sorted(options.items())))


def _uri_problems(scheme: str, bucket: str, has_user: bool, options: dict[str, str]) -> list[str]:
    """What is wrong with a URI. ``has_user``: a host in it has a user name or password before it."""
    valid_options = _OPTIONS[scheme]
    unknown = sorted(set(options) - valid_options)
    secret = [name for name in unknown if any(word in name.lower() for word in _SECRET_WORDS)]
    problems = []
    if has_user or secret:
        problems.append(
            "the results URI or its endpoint holds credentials, which would end up in logs and "
            f"files; {_HELP[scheme]}"
        )
    if not bucket or ":" in bucket:
        problems.append(f"the results URI has no bucket; write {scheme}://bucket/prefix")
    misspelt = [name for name in unknown if name not in secret]
    if misspelt:
        problems.append(
            f"unknown option of the results URI: {', '.join(misspelt)}; known: "
            f"{', '.join(sorted(valid_options))}"
        )
    return problems


def _endpoint(options: dict[str, str]) -> dict[str, str]:
    """The options, with the endpoint, scheme and region of an S3 that is not AWS.

    The endpoint is that of the URI, or else of AWS_ENDPOINT_URL, which pyarrow does not read.
    Options of the URI win over what the endpoint and the environment say.
    """
    endpoint = options.get("endpoint_override")
    for variable in _ENDPOINT_VARIABLES:
        endpoint = endpoint or os.environ.get(variable)
    if not endpoint:
        return options
    scheme, separator, host = endpoint.rpartition("://")
    defaults = {"region": _region_of_environment() or "us-east-1"}
    if separator:
        defaults["scheme"] = scheme
    return defaults | options | {"endpoint_override": host}


def _s3(path: str, options: dict[str, Any]) -> fs.FileSystem:
    if "region" not in options:
        bucket = path.partition("/")[0]
        options["region"] = _region_of_environment() or _region_of(bucket)
    return fs.S3FileSystem(
        **options,
        allow_delayed_open=True,  # one PUT instead of a multipart upload of three requests
        background_writes=False,
        connect_timeout=5,
        request_timeout=30,
        # the standard strategy stops repeating once 50 to 100 calls were refused
        retry_strategy=fs.AwsDefaultS3RetryStrategy(max_attempts=1),
    )


def _region_of_environment() -> str | None:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")


def _region_of(bucket: str) -> str:
    """Where a bucket is. Raises InputError where that cannot be found out."""
    try:
        _look_up(_AWS_HOST)
        region: str = fs.resolve_s3_region(bucket)
    except OSError as error:
        raise InputError(
            f"the region of s3://{bucket} is not known: {_one_line(error)}; is its name right, and "
            "is there a network? AWS_REGION names the region"
        ) from error
    return region


def _look_up(host: str) -> None:
    """Raises OSError where the host has no address. The AWS SDK would try for 7 to 10 s."""
    try:
        socket.getaddrinfo(host, 443)
    except socket.gaierror as error:
        raise OSError(f"Could not resolve host {host}") from error


def _gcs(options: dict[str, Any]) -> fs.FileSystem:
    from datetime import timedelta

    return fs.GcsFileSystem(**options, retry_time_limit=timedelta(seconds=30))
