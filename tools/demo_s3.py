"""``make demo-s3``: the demo on a real S3 server (SeaweedFS), which it starts on this machine and ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mm_assets_tests.live.s3_server import s3_server
from tools.demo import RAW, main, make_shards


def demo() -> int:
    """Put the example shards into a bucket, and run the demo from there into another folder of it."""
    make_shards(RAW)
    with s3_server() as server:
        bucket = server.new_bucket()
        for shard in sorted(Path(RAW).glob("*.tar")):
            server.filesystem().put_file(str(shard), f"{bucket}/raw/{shard.name}")
        locations = {"MM_RAW_SHARDS": f"s3://{bucket}/raw/", "MM_STORAGE": f"s3://{bucket}/storage"}
        given = " ".join(f"{name}={value}" for name, value in locations.items())
        print(f"S3 server: AWS_ENDPOINT_URL={server.endpoint} {given}")
        os.environ.update({**server.env, **locations, "DAGSTER_HOME": ""})
        return main()


if __name__ == "__main__":
    sys.exit(demo())
