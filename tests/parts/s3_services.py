"""S3 services that tests of the store run on: moto here, and a Ceph RGW where one is named."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from threading import Lock, Thread
from typing import Any

import boto3
import httpx
import pytest
from botocore.config import Config
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from s3fs import S3FileSystem
from werkzeug.serving import make_server
from werkzeug.wsgi import get_input_stream

from infra.processes.network import free_ports

RGW_ENDPOINT = "TRIBUTARY_TEST_RGW_ENDPOINT"
_REGION = "us-east-1"
_POLICY = (
    '{"Version": "2012-10-17", "Statement":'
    ' [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}'
)


@dataclass(frozen=True, slots=True)
class Service:
    """An S3 endpoint, and keys that may make buckets there."""

    endpoint: str
    access_key: str
    secret_key: str
    region: str = _REGION

    @property
    def client(self) -> Any:
        return boto3.client(
            "s3", endpoint_url=self.endpoint, region_name=self.region,
            aws_access_key_id=self.access_key, aws_secret_access_key=self.secret_key,
            config=Config(s3={"addressing_style": "path"}),
        )  # fmt: skip

    def enter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the environment name this service and these keys, and no others."""
        S3FileSystem.clear_instance_cache()  # its clients read the environment once a process
        monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
        monkeypatch.delenv("AWS_PROFILE", raising=False)
        monkeypatch.setenv("AWS_ENDPOINT_URL", self.endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", self.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", self.secret_key)
        monkeypatch.setenv("AWS_DEFAULT_REGION", self.region)

    @contextmanager
    def bucket(self, name: str) -> Generator[str]:
        """A bucket that is gone afterwards, with all that a test left in it."""
        self.client.create_bucket(Bucket=name)
        try:
            yield name
        finally:
            for upload in self.client.list_multipart_uploads(Bucket=name).get("Uploads", []):
                self.client.abort_multipart_upload(
                    Bucket=name, Key=upload["Key"], UploadId=upload["UploadId"]
                )
            for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=name):
                for entry in page.get("Contents", []):
                    self.client.delete_object(Bucket=name, Key=entry["Key"])
            self.client.delete_bucket(Bucket=name)


class _Handler(MotoRequestHandler):
    timeout = 30.0
    """seconds that a connection may say nothing"""


@contextmanager
def moto(host: str = "127.0.0.1") -> Generator[Service]:
    """A server in this process that checks keys and signatures, as a real one does."""
    (port,) = free_ports(1)
    app, turn = DomainDispatcherApplication(create_backend_app), Lock()

    def one_at_a_time(environ: dict[str, Any], start_response: Any) -> Any:
        # moto looks for an object and writes it in two steps, a real service in one. The body comes
        # first: a host that is killed while it sends keeps nobody else waiting.
        environ["wsgi.input"] = BytesIO(get_input_stream(environ).read())
        with turn:
            return app(environ, start_response)

    server = make_server(host, port, one_at_a_time, True, request_handler=_Handler)
    serving = Thread(target=server.serve_forever, daemon=True)
    serving.start()
    endpoint = f"http://{host}:{port}"
    try:
        iam = boto3.client(
            "iam", endpoint_url=endpoint, region_name=_REGION,
            aws_access_key_id="test", aws_secret_access_key="test",
        )  # fmt: skip
        iam.create_user(UserName="tests")
        iam.put_user_policy(UserName="tests", PolicyName="all", PolicyDocument=_POLICY)
        key = iam.create_access_key(UserName="tests")["AccessKey"]
        _check_keys_after(endpoint, "0")
        yield Service(endpoint, key["AccessKeyId"], key["SecretAccessKey"])
    finally:
        _check_keys_after(endpoint, "inf")  # the setting is the whole process's
        httpx.post(f"{endpoint}/moto-api/reset").raise_for_status()
        server.shutdown()
        serving.join()


@contextmanager
def rgw() -> Generator[Service]:
    """The one that the environment names; the test is skipped where it names none."""
    names = (RGW_ENDPOINT, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    missing = [name for name in names if not os.environ.get(name)]
    if missing:
        pytest.skip(f"no Ceph RGW to test on: {', '.join(missing)} not set")
    region = os.environ.get("AWS_DEFAULT_REGION", _REGION)
    yield Service(*(os.environ[name] for name in names), region=region)


def _check_keys_after(endpoint: str, requests: str) -> None:
    httpx.post(f"{endpoint}/moto-api/reset-auth", content=requests).raise_for_status()
