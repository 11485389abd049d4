"""A Kubernetes API server that only keeps objects: enough for kubectl, which finds the kinds there,
creates, shows, patches and deletes. It runs nothing.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

Object = dict[str, Any]
TOKEN = "my token"  # that KubeRay makes for a cluster
# group and version -> plural -> kind, of what the page on Kubernetes names
KINDS = {
    "v1": {
        "configmaps": "ConfigMap",
        "persistentvolumeclaims": "PersistentVolumeClaim",
        "secrets": "Secret",
        "services": "Service",
    },
    "ray.io/v1": {"rayclusters": "RayCluster", "rayjobs": "RayJob"},
}


@dataclass(slots=True)
class Objects:
    """The objects by their path."""

    by_path: dict[str, Object] = field(default_factory=dict)

    def of_kind(self, kind: str) -> dict[str, Object]:
        """The objects of a kind by their names."""
        objects = [entry for entry in self.by_path.values() if entry["kind"] == kind]
        return {entry["metadata"]["name"]: entry for entry in objects}

    def put(self, path: str, entry: Object) -> None:
        """Keeps an object, with what a server adds to it."""
        entry["metadata"] |= {"uid": path, "namespace": "default"}
        self.by_path[path] = entry
        if entry["kind"] == "RayCluster":
            self._add_what_kuberay_makes(entry["metadata"]["name"])

    def _add_what_kuberay_makes(self, cluster: str) -> None:
        """The secret with the token of a cluster, and the service of its head."""
        token = base64.b64encode(TOKEN.encode()).decode()
        secret = {"kind": "Secret", "metadata": {"name": cluster}, "data": {"auth_token": token}}
        service = {"kind": "Service", "metadata": {"name": f"{cluster}-head-svc"}}
        folder = "/api/v1/namespaces/default"
        self.put(f"{folder}/secrets/{cluster}", {"apiVersion": "v1", **secret})
        self.put(f"{folder}/services/{cluster}-head-svc", {"apiVersion": "v1", **service})


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, objects: Objects, *given: Any) -> None:
        self.objects = objects
        super().__init__(*given)

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self._answer(_discovery(path) or self.objects.by_path.get(path))

    def do_POST(self) -> None:
        entry = self._body()
        path = f"{urlsplit(self.path).path}/{entry['metadata']['name']}"
        if path in self.objects.by_path:
            self._refuse(409, "AlreadyExists")
            return
        self.objects.put(path, entry)
        self._answer(entry, 201)

    def do_PATCH(self) -> None:
        path = urlsplit(self.path).path
        self.objects.by_path[path] |= {
            name: value for name, value in self._body().items() if name != "metadata"
        }
        self._answer(self.objects.by_path[path])

    def do_DELETE(self) -> None:
        self._answer(self.objects.by_path.pop(urlsplit(self.path).path, None))

    def _body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, answer: Object | None, status: int = 200) -> None:
        if answer is None:
            self._refuse(404, "NotFound")
            return
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, code: int, reason: str) -> None:
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
        self._answer({**status, "reason": reason, "message": reason, "code": code}, code)

    def log_message(self, *_: object) -> None:
        pass


def _discovery(path: str) -> Object | None:
    """What a server says of its groups and kinds, if the path asks for that."""
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        version = {"groupVersion": "ray.io/v1", "version": "v1"}
        group = {"name": "ray.io", "versions": [version], "preferredVersion": version}
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}
    for group_version, kinds in KINDS.items():
        if path in (f"/api/{group_version}", f"/apis/{group_version}"):
            verbs = ["create", "delete", "get", "list", "patch", "watch"]
            resources = [
                {
                    "name": plural,
                    "singularName": kind.lower(),
                    "kind": kind,
                    "namespaced": True,
                    "verbs": verbs,
                }
                for plural, kind in kinds.items()
            ]
            return {
                "kind": "APIResourceList",
                "groupVersion": group_version,
                "resources": resources,
            }
    return None


@contextmanager
def kubernetes_api(objects: Objects) -> Iterator[str]:
    """The address of a server of these objects."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, objects))
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
