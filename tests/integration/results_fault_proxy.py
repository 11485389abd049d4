"""A proxy with faults before an S3 server, as a process of its own:
``python results_fault_proxy.py UPSTREAM_PORT MODE [PORT]``. It prints its port.

Modes: ``third_503`` answers every third request with 503, ``all_503`` every one; ``lost_reply`` lets
every PUT through and drops its answer; ``reset`` ends every connection, ``hang`` keeps it open and
answers nothing. GET /faults tells how many faults there were, GET /mode/NAME changes the mode.
"""

import http.client
import itertools
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

UPSTREAM, MODE = int(sys.argv[1]), sys.argv[2]
requests_seen = itertools.count(1)
faults: list[str] = []  # the mode of each fault; several threads append
SLOW_DOWN = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>slow down</Message></Error>"


class Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_any(self) -> None:
        global MODE
        body = self.raw_body()
        if self.path == "/faults":
            return self.answer(200, str(len(faults)).encode())
        if self.path.startswith("/mode/"):
            MODE = self.path.removeprefix("/mode/")
            return self.answer(200, b"")
        if MODE in ("reset", "hang"):
            faults.append(MODE)
            while MODE == "hang":
                time.sleep(0.2)
            self.close_connection = True
            return None
        if MODE == "all_503" or (MODE == "third_503" and next(requests_seen) % 3 == 0):
            faults.append(MODE)
            return self.answer(503, SLOW_DOWN)
        upstream = http.client.HTTPConnection("127.0.0.1", UPSTREAM, timeout=20)
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in ("expect", "connection"):
                upstream.putheader(name, value)
        upstream.endheaders(body)
        reply = upstream.getresponse()
        content = reply.read()
        upstream.close()
        if MODE == "lost_reply" and self.command == "PUT":
            faults.append(MODE)
            self.close_connection = True
            return None
        # these are written anew
        skip = {"content-length", "connection", "transfer-encoding", "date", "server"}
        headers = [(name, value) for name, value in reply.getheaders() if name.lower() not in skip]
        # an answer to HEAD has the length of a body that it does not have
        length = reply.getheader("Content-Length") if self.command == "HEAD" else None
        return self.answer(reply.status, content, headers, length)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

    def raw_body(self) -> bytes:
        """The body as it came, chunk frames included: the AWS library sends chunks with a checksum
        behind.
        """
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while True:
            line = self.rfile.readline()
            size = int(line, 16)
            body += line + self.rfile.read(size + 2)
            if not size:
                return body

    def answer(self, status: int, content: bytes, headers=(), length: str | None = None) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[3]) if len(sys.argv) > 3 else 0), Proxy)
print(server.server_port, flush=True)
server.serve_forever()
