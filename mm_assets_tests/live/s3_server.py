"""A real S3 store for a test session: SeaweedFS, from the clients' environment, on loopback only."""

import json
import random
import secrets
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WEED = Path(__file__).resolve().parents[2] / ".venv-clients" / "bin" / "weed"
REGION = "us-east-1"
_PORTS = 5  # s3, master, volume, filer, admin; each also takes port + 10000 for gRPC
_GRPC = 10_000


class S3ServerError(RuntimeError):
    """The store did not come up."""


@dataclass(frozen=True)
class S3Server:
    endpoint: str
    key: str
    secret: str
    bucket: str
    pid: int

    @property
    def env(self) -> dict[str, str]:
        """What a user of any S3-compatible store sets, and nothing more."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
        }

    def filesystem(self) -> Any:
        """The store through s3fs, uncached: for looking at it from outside."""
        import s3fs

        return s3fs.S3FileSystem(
            key=self.key,
            secret=self.secret,
            client_kwargs={"endpoint_url": self.endpoint, "region_name": REGION},
            use_listings_cache=False,
            skip_instance_cache=True,
        )

    def new_bucket(self) -> str:
        """A bucket of its own for a test (an emptied prefix lingers in SeaweedFS: do not share, do not
        clean).
        """
        name = f"test-{secrets.token_hex(6)}"
        self.filesystem().mkdir(name)
        return name


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _free_ports() -> int:
    """First of _PORTS neighbours that are free with their gRPC twins; below the range the kernel hands
    out.
    """
    for base in random.sample(range(18_000, 22_000, _PORTS), 200):
        if all(_is_free(port) and _is_free(port + _GRPC) for port in range(base, base + _PORTS)):
            return base
    raise S3ServerError("no free ports between 18000 and 22000")


def _start(folder: Path, base: int, key: str, secret: str) -> subprocess.Popen[bytes]:
    identity = {
        "name": "test",
        "credentials": [{"accessKey": key, "secretKey": secret}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    ports = {"s3": base, "master": base + 1, "volume": base + 2, "filer": base + 3, "admin": base + 4}
    command = [
        str(WEED),
        f"-logdir={folder}",
        "mini",
        f"-dir={folder}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
    ]
    command += [f"-{service}.port={port}" for service, port in ports.items()]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-webdav=false", "-admin.ui=false"]
    command += [f"-s3.config={folder / 's3.json'}", "-master.telemetry=false"]
    with open(folder / "weed.log", "wb") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder)


def _remove_sockets(base: int) -> None:
    """A killed server leaves its unix sockets, always in /tmp, named by port."""
    for port in (*range(base, base + _PORTS), *range(base + _GRPC, base + _GRPC + _PORTS)):
        for socket_file in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
            socket_file.unlink(missing_ok=True)


def _wait(process: subprocess.Popen[bytes], server: S3Server, log: Path, seconds: float) -> None:
    """Healthy is not yet writable: ready is when a bucket was made and an object came back from it."""
    deadline = time.monotonic() + seconds
    last: Exception | None = None
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise S3ServerError(
                f"weed ended with {process.returncode}:\n{log.read_text(errors='replace')[-3000:]}"
            )
        try:
            urllib.request.urlopen(f"{server.endpoint}/healthz", timeout=2).close()
            store = server.filesystem()
            if not store.exists(server.bucket):
                store.mkdir(server.bucket)
            store.pipe_file(f"{server.bucket}/warm-up", b"ready")
            if store.cat_file(f"{server.bucket}/warm-up") == b"ready":
                return
        except (OSError, urllib.error.URLError) as error:  # s3fs translates every S3 error to an OSError
            last = error
        time.sleep(0.2)
    raise S3ServerError(
        f"not ready after {seconds:.0f} s: {last!r}\n{log.read_text(errors='replace')[-3000:]}"
    )


@contextmanager
def s3_server(seconds: float = 90) -> Iterator[S3Server]:
    """A running store with one bucket; killed (by its pid: SIGTERM takes it 15 s) and wiped at the end."""
    if not WEED.exists():
        raise S3ServerError(f"{WEED} is missing: run clients/install")
    key, secret = "testkey", secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="seaweed-", ignore_cleanup_errors=True) as folder:
        base = _free_ports()
        process = _start(Path(folder), base, key, secret)
        try:
            server = S3Server(f"http://127.0.0.1:{base}", key, secret, "mm-assets", process.pid)
            _wait(process, server, Path(folder) / "weed.log", seconds)
            yield server
        finally:
            process.kill()
            process.wait()
            _remove_sockets(base)
