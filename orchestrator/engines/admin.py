"""Calls to a running engine that are no load: emptying its prefix cache."""

from __future__ import annotations

import http.client
from contextlib import closing
from urllib.parse import urlsplit

ADMIN_LIMIT_S = 30.0


def reset_prefix_cache(base_url: str, path: str, api_key: str) -> bool:
    """POST to the engine's own reset. True when it said it did; an engine that cannot is measured with a warm cache,
    which workloads of distinct prompts do not notice.
    """
    parts = urlsplit(base_url)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=ADMIN_LIMIT_S)) as connection:
        try:
            connection.request("POST", path, headers=headers)
            return 200 <= connection.getresponse().status < 300
        except (OSError, http.client.HTTPException):
            return False
