"""What content credentials in images say of training; the images are signed by a certificate made here."""

from __future__ import annotations

import io
import json
import random
import socket
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import c2pa
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from mm_assets.filters.measures import C2paTraining
from mm_assets_tests.filters.measures.contents import content, file_of, scene

Entries = Mapping[str, str]
PICTURE = file_of(scene(60, 80), "JPEG")
_CREATED = {
    "action": "c2pa.created",
    "digitalSourceType": "http://cv.iptc.org/newscodes/digitalsourcetype/digitalCapture",
}


@cache
def signer_info() -> c2pa.C2paSignerInfo:
    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    chain = [_certificate("signer", key, authority, False), _certificate("root", authority, authority, True)]
    return c2pa.C2paSignerInfo(
        alg=b"es256",
        sign_cert=b"".join(each.public_bytes(serialization.Encoding.PEM) for each in chain),
        private_key=key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        ta_url=None,
    )


def _certificate(name: str, key: Any, authority: Any, is_root: bool) -> x509.Certificate:
    subject, issuer = (_named(each) for each in (name, "root"))
    usage = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "crl_sign"), False
    )
    usage |= {"digital_signature": not is_root, "key_cert_sign": is_root}
    builder = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(days=1))
        .not_valid_after(datetime.now(UTC) + timedelta(days=30))
        .add_extension(x509.BasicConstraints(is_root, None), critical=True)
        .add_extension(x509.KeyUsage(**usage, encipher_only=False, decipher_only=False), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False
        )
    )
    if not is_root:
        mail = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION])
        builder = builder.add_extension(mail, critical=False)
    return builder.sign(authority, hashes.SHA256())


def _named(name: str) -> x509.Name:
    of = (NameOID.COMMON_NAME, name), (NameOID.ORGANIZATION_NAME, "tests")
    return x509.Name([x509.NameAttribute(*each) for each in of])


def signed(
    entries: Entries | None,
    label: str = "cawg.training-mining",
    picture: bytes = PICTURE,
    kind: str = "image/jpeg",
    parent: bytes | None = None,
    url: str | None = None,
    others: Sequence[dict[str, Any]] = (),
) -> bytes:
    """The picture with credentials.

    Args:
        entries: uses by name; None: they say nothing of training.
        parent: the file that it was made of.
        url: where the credentials lie, instead of in the file.
        others: further assertions.
    """
    actions = [_CREATED] if parent is None else [{"action": "c2pa.opened"}]
    assertions: list[dict[str, Any]] = (
        [] if parent else [{"label": "c2pa.actions", "data": {"actions": actions}}]
    )
    if entries is not None:
        data = {"entries": {name: {"use": use} for name, use in entries.items()}}
        assertions.append({"label": label, "data": data})
    assertions += others
    manifest = {"claim_generator_info": [{"name": "tests"}], "format": kind, "assertions": assertions}
    builder = c2pa.Builder(json.dumps(manifest))
    if parent is not None:
        builder.set_intent(c2pa.C2paBuilderIntent.EDIT)
        builder.add_ingredient(
            json.dumps({"title": "p", "relationship": "parentOf"}), kind, io.BytesIO(parent)
        )
    if url is not None:
        builder.set_no_embed()
        builder.set_remote_url(url)
    made = io.BytesIO()
    builder.sign(c2pa.Signer.from_info(signer_info()), kind, io.BytesIO(picture), made)
    return made.getvalue()


def measured(data: bytes) -> str | None:
    return C2paTraining().measure(content(data))


def measured_of_jpeg(data: bytes) -> str | None:
    """The same of data whose header need not be readable."""
    image = content(PICTURE)
    image.data = memoryview(data)
    return C2paTraining().measure(image)


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        ({"cawg.ai_generative_training": "notAllowed"}, "notAllowed"),
        ({"cawg.ai_training": "allowed"}, "allowed"),
        ({"cawg.ai_training": "allowed", "cawg.ai_generative_training": "constrained"}, "constrained"),
        ({"cawg.ai_training": "constrained", "cawg.data_mining": "notAllowed"}, "notAllowed"),
        ({"cawg.ai_inference": "notAllowed", "cawg.ai_training": "allowed"}, "allowed"),
        ({"cawg.ai_inference": "notAllowed"}, None),
        ({}, None),
        (None, None),
    ],
)
def test_the_strictest_use_of_training_counts(entries: Entries | None, found: str | None) -> None:
    assert measured(signed(entries)) == found


@pytest.mark.parametrize(
    "data", [[], "no", 1, {"entries": []}, {"entries": {"a": 1, "b": {"use": [1]}, "c": {}}}]
)
def test_assertions_of_another_form_say_nothing(data: Any) -> None:
    assert measured(signed(None, others=[{"label": "cawg.training-mining", "data": data}])) is None


def test_the_earlier_name_of_the_assertion() -> None:
    entries = {"c2pa.ai_generative_training": "notAllowed", "c2pa.data_mining": "allowed"}
    assert measured(signed(entries, "c2pa.training-mining")) == "notAllowed"


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF", "GIF"])
def test_other_formats(kind: str) -> None:
    made = signed(
        {"cawg.ai_training": "notAllowed"}, picture=file_of(scene(60, 80), kind), kind=f"image/{kind.lower()}"
    )
    assert measured(made) == "notAllowed"


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "GIF", "BMP"])
def test_images_without_credentials(kind: str) -> None:
    assert measured(file_of(scene(60, 80), kind)) is None


def test_what_an_image_was_made_of_forbids_and_does_not_allow() -> None:
    for use, expected in (("notAllowed", "notAllowed"), ("constrained", "constrained"), ("allowed", None)):
        parent = signed({"cawg.ai_training": use})
        assert measured(signed(None, parent=parent)) == expected


def test_a_file_that_is_not_as_it_was_signed_forbids_and_does_not_allow() -> None:
    for use, expected in (("notAllowed", "notAllowed"), ("allowed", None)):
        data = signed({"cawg.ai_training": use})
        assert measured(data[:-40] + bytes(38) + data[-2:]) == expected


def test_damaged_credentials_are_no_fault() -> None:
    """Nor is the word in a file that has none."""
    data = signed({"cawg.ai_training": "notAllowed"})
    assert measured_of_jpeg(data[:400] + data[900:]) is None
    assert measured(PICTURE + b"c2pa") is None
    start, chance = data.index(b"c2pa"), random.Random(1)
    for _ in range(200):
        damaged = bytearray(data)
        for _ in range(chance.randint(1, 20)):
            damaged[chance.randrange(start, start + 4000)] = chance.randrange(256)
        assert measured_of_jpeg(bytes(damaged)) in (None, "notAllowed", "constrained", "allowed")


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


def test_nothing_is_fetched(server: socket.socket) -> None:
    """Not even credentials that lie elsewhere."""
    url = f"http://127.0.0.1:{server.getsockname()[1]}/m.c2pa"
    data = signed({"cawg.ai_training": "notAllowed"}, url=url)
    assert b"m.c2pa" in data
    assert measured(data) is None
    with pytest.raises(BlockingIOError):
        server.accept()
