"""A stand-in for the Hugging Face Hub: an HTTP server with what its client asks for when it publishes.

It is no Hub: it keeps data sets in memory, checks the digests of what it gets, and knows nothing else.
Answers are of the form that huggingface_hub 2.4 expects; large files come by the basic LFS transfer.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_standin"
LFS_SUFFIXES = (".parquet", ".tar", ".lance", ".arrow")


@dataclass
class HubStandIn:
    """The server.

    Attributes:
        data_sets: files of each by path.
        private: whether each was made as a private one.
        commits: message, and paths that were added and removed, of each commit.
        uploaded: digests of the large files that were sent.
        fails_after: large files after which the line is cut; None: it is not.
    """

    endpoint: str = ""
    data_sets: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: dict[str, bool] = field(default_factory=dict)
    commits: list[tuple[str, list[str], list[str]]] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)
    uploaded: list[str] = field(default_factory=list)
    fails_after: int | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def environment(self) -> dict[str, str]:
        return {"HF_ENDPOINT": self.endpoint, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}

    def tree(self, name: str) -> list[dict[str, Any]]:
        return [self._entry(path, data) for path, data in sorted(self.data_sets[name].items())]

    def _entry(self, path: str, data: bytes) -> dict[str, Any]:
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": blob}
        if path.endswith(LFS_SUFFIXES):
            digest = hashlib.sha256(data).hexdigest()
            entry |= {"oid": "0" * 40, "lfs": {"oid": digest, "size": len(data), "pointerSize": 130}}
        return entry

    def commit(self, name: str, lines: list[dict[str, Any]]) -> None:
        files = self.data_sets[name]
        message, added, removed = "", [], []
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                message = value["summary"]
            elif line["key"] == "file":
                assert value["encoding"] == "base64"
                files[value["path"]] = base64.b64decode(value["content"])
                added.append(value["path"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.objects[value["oid"]]
                added.append(value["path"])
            elif line["key"] == "deletedFile":
                del files[value["path"]]
                removed.append(value["path"])
        self.commits.append((message, added, removed))


def _handler(hub: HubStandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") == "chunked":
                parts = []
                while size := int(self.rfile.readline(), 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def _answer(self, value: Any = None, code: int = 200, **headers: str) -> None:
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(code)
            for name, text in headers.items():
                self.send_header(name.replace("_", "-"), text)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def _refuse(self, code: int, kind: str) -> None:
            self._answer({"error": kind}, code, X_Error_Code=kind, X_Error_Message=kind)

        def _data_set(self, parts: list[str]) -> str | None:
            name = "/".join(parts[:2])
            if name in hub.data_sets:
                return name
            self._refuse(404, "RepoNotFound")
            return None

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
            if parts[:2] == ["api", "datasets"]:
                name = self._data_set(parts[2:4])
                if name is None:
                    return
                if parts[4:5] == ["tree"]:
                    self._answer(hub.tree(name))
                else:
                    self._answer({"id": name, "sha": "0" * 40, "siblings": [], "private": hub.private[name]})
            elif parts[0] == "datasets" and parts[3:4] == ["resolve"]:
                name = self._data_set(parts[1:3])
                if name is not None:
                    data = hub.data_sets[name]["/".join(parts[5:])]
                    asked = self.headers.get("Range")
                    if asked and asked.startswith("bytes="):
                        low, _, high = asked.removeprefix("bytes=").partition("-")
                        end = min(int(high or len(data) - 1), len(data) - 1)
                        span = f"bytes {low}-{end}/{len(data)}"
                        self._answer(data[int(low) : end + 1], 206, Content_Range=span)
                    else:
                        self._answer(data)
            else:
                self._refuse(404, "EntryNotFound")

        def do_POST(self) -> None:
            body, path = self._body(), urlsplit(self.path).path
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                self._refuse(401, "Unauthorized")
                return
            parts = [unquote(part) for part in path.strip("/").split("/")]
            if parts == ["api", "repos", "create"]:
                asked = json.loads(body)
                name = f"{asked.get('organization') or 'user'}/{asked['name']}"
                code = 409 if name in hub.data_sets else 200
                hub.data_sets.setdefault(name, {})
                hub.private.setdefault(
                    name, bool(asked.get("private") or asked.get("visibility") == "private")
                )
                self._answer({"url": f"{hub.endpoint}/datasets/{name}", "name": name}, code)
            elif parts == ["api", "validate-yaml"]:
                self._answer({"errors": [], "warnings": []})
            elif path.endswith("/info/lfs/objects/batch"):
                objects = json.loads(body)["objects"]
                self._answer({"transfer": "basic", "objects": [self._upload(one) for one in objects]})
            elif parts[4:5] == ["preupload"]:
                files = json.loads(body)["files"]
                modes = [
                    {
                        "path": one["path"],
                        "uploadMode": "lfs" if one["path"].endswith(LFS_SUFFIXES) else "regular",
                        "shouldIgnore": False,
                        "oid": None,
                    }
                    for one in files
                ]
                self._answer({"files": modes})
            elif parts[4:5] == ["commit"]:
                name = "/".join(parts[2:4])
                hub.commit(name, [json.loads(line) for line in body.splitlines() if line])
                self._answer(
                    {
                        "commitUrl": f"{hub.endpoint}/datasets/{name}/commit/{0:040}",
                        "commitOid": "0" * 40,
                        "success": True,
                    }
                )
            else:
                self._refuse(404, f"unknown: {path}")

        def _upload(self, one: dict[str, Any]) -> dict[str, Any]:
            if one["oid"] in hub.objects:
                return one
            actions = {"upload": {"href": f"{hub.endpoint}/lfs/{one['oid']}"}}
            return {**one, "actions": actions}

        def do_PUT(self) -> None:
            oid, data = self.path.rpartition("/")[2], self._body()
            if hashlib.sha256(data).hexdigest() != oid:
                self._refuse(400, "other bytes than were announced")
                return
            with hub.lock:  # files come at the same time
                is_cut = hub.fails_after is not None and len(hub.uploaded) >= hub.fails_after
                if not is_cut:
                    hub.objects[oid] = data
                    hub.uploaded.append(oid)
            if is_cut:
                self._refuse(403, "the line is cut")
            else:
                self._answer(b"")

    return Handler


@contextmanager
def hub_stand_in() -> Iterator[HubStandIn]:
    hub = HubStandIn()
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub)) as server:
        hub.endpoint = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
