"""Emulators of Google's and Azure's object stores, from the clients' environment, on loopback only."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec

from mm_assets_tests.free_port import free_port

_CLIENTS = Path(__file__).resolve().parents[2] / ".venv-clients"
_GOOGLE = _CLIENTS / "bin" / "gcp-storage-emulator"
AZURITE = _CLIENTS / "node" / "node_modules" / ".bin" / "azurite-blob"
_BUCKET = "test"
_SECONDS = 60
# The account that every Azurite has; no secret.
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass(frozen=True)
class StoreEmulator:
    """A store in memory.

    Args:
        scheme: of its URLs.
        env: what a user of the store sets.
        formats: what can be written there.
    """

    scheme: str
    env: dict[str, str]
    formats: Sequence[str]

    @property
    def bucket(self) -> str:
        return f"{self.scheme}://{_BUCKET}"

    def filesystem(self) -> Any:
        """The store from outside, where `env` is the environment."""
        return fsspec.filesystem(self.scheme, skip_instance_cache=True, use_listings_cache=False)


@contextmanager
def google_emulator() -> Iterator[StoreEmulator]:
    """Google Cloud Storage; without the XML interface, which Lance asks."""
    port = free_port()
    command = [_GOOGLE, "start", "--host=127.0.0.1", f"--port={port}", "--in-memory", "--quiet"]
    address = f"http://127.0.0.1:{port}"
    # Without credentials the client would look for a server that gives them to machines of Google.
    env = {"STORAGE_EMULATOR_HOST": address, "NO_GCE_CHECK": "true"}
    with _running(command, port):
        yield StoreEmulator("gs", env, ("parquet", "webdataset", "arrow_cache"))


@contextmanager
def azure_emulator() -> Iterator[StoreEmulator]:
    """Azure Blob Storage, by Azurite."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [AZURITE, "--blobPort", str(port), "--inMemoryPersistence", "--skipApiVersionCheck", "--silent"]
    account = f"AccountName={_ACCOUNT};AccountKey={_KEY};BlobEndpoint={address}/{_ACCOUNT}"
    connection = f"DefaultEndpointsProtocol=http;{account}"
    env = {
        "AZURE_STORAGE_CONNECTION_STRING": connection,
        # Lance reads no connection string.
        "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
        "AZURE_STORAGE_USE_EMULATOR": "true",
        "AZURITE_BLOB_STORAGE_URL": address,
    }
    with _running(command, port):
        yield StoreEmulator("az", env, ("parquet", "webdataset", "arrow_cache", "lance"))


@contextmanager
def _running(command: Sequence[object], port: int) -> Iterator[None]:
    """A server, once it listens."""
    process = subprocess.Popen(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + _SECONDS
        while True:
            assert process.poll() is None, f"{command[0]} ended with {process.returncode}"
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < deadline, f"{command[0]} does not listen"
                time.sleep(0.1)
        yield
    finally:
        process.kill()
        process.wait()
