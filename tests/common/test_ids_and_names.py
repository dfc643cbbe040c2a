"""Ids are made from an injected source; names from outside are checked, and refused with their field's path."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.common import names
from aliquot.common.errors import InvalidFieldError
from aliquot.common.ids import ALPHABET, IdGenerator, secret_sha256


def test_ids_have_their_prefix_and_65_bits() -> None:
    ids = IdGenerator()
    for made, prefix in [
        (ids.lease_id(), "l-"),
        (ids.slice_id(), "s-"),
        (ids.node_id(), "n-"),
        (ids.idempotency_key(), "k-"),
    ]:
        assert made.startswith(prefix)
        assert names.ID.fullmatch(made)
    assert names.validate_slice_id(ids.slice_id())
    assert names.validate_node(ids.node_id())
    assert names.validate_idempotency_key(ids.idempotency_key())


def test_the_same_source_gives_the_same_ids() -> None:
    first, second = IdGenerator(random.Random(7)), IdGenerator(random.Random(7))
    made = [first.lease_id() for _ in range(1000)]
    assert made == [second.lease_id() for _ in range(1000)]
    assert len(set(made)) == 1000
    # Every character of the alphabet comes up, so all bits are used.
    assert set("".join(each[2:] for each in made)) == set(ALPHABET)


def test_extreme_bits_fill_the_whole_width() -> None:
    class Fixed:
        def __init__(self, bit: int) -> None:
            self.bit = bit

        def getrandbits(self, k: int, /) -> int:
            return self.bit * ((1 << k) - 1)

    assert IdGenerator(Fixed(0)).lease_id() == "l-" + "0" * 13
    assert IdGenerator(Fixed(1)).lease_id() == "l-" + "z" * 13


def test_a_secret_is_kept_as_its_hash() -> None:
    secret = IdGenerator().secret()
    assert len(secret) == 26
    assert len(secret_sha256(secret)) == 32
    assert secret_sha256(secret) != secret_sha256(secret + "0")


GOOD: list[tuple[Callable[..., str], str]] = [
    (names.validate_tenant, "a"),
    (names.validate_tenant, "research/vision.team_1"),
    (names.validate_tenant, "x" * 128),
    (names.validate_queue, "org/team/batch"),
    (names.validate_pool, "training"),
    (names.validate_pool, "x" * 63),
    (names.validate_node, "gpu-07.rack3.example.com"),
    (names.validate_node, "openb-node-0000"),
    (names.validate_node, "NODE_1"),
    (names.validate_device_uuid, "GPU-5a3c9f0e-0000-1111-2222-333344445555"),
    (names.validate_device_uuid, "MIG-GPU-5a3c9f0e/7/0"),
    (names.validate_idempotency_key, "job:1#2"),
    (names.validate_slice_id, "l-5n2k8wq0x3r7t.0.1"),
]

BAD: list[tuple[Callable[..., str], str]] = [
    (names.validate_slice_id, "-x"),
    (names.validate_slice_id, "x" * 129),
    (names.validate_tenant, ""),
    (names.validate_tenant, "x" * 129),
    (names.validate_tenant, "a//b"),
    (names.validate_tenant, "/a"),
    (names.validate_tenant, "a/"),
    (names.validate_tenant, "a/../b"),
    (names.validate_tenant, "a b"),
    (names.validate_tenant, "ünïcode"),
    (names.validate_queue, "a\n"),
    (names.validate_pool, "a.b"),
    (names.validate_pool, "x" * 64),
    (names.validate_pool, "-x"),
    (names.validate_node, "x" * 64),
    (names.validate_node, ".".join(["x" * 60] * 5)),
    (names.validate_node, "a..b"),
    (names.validate_node, "a/b"),
    (names.validate_device_uuid, ""),
    (names.validate_device_uuid, "GPU 1"),
    (names.validate_idempotency_key, ""),
    (names.validate_idempotency_key, "a b"),
    (names.validate_idempotency_key, "x" * 129),
]


@pytest.mark.parametrize(("validate", "value"), GOOD)
def test_good_names_come_back_as_they_are(validate: Callable[..., str], value: str) -> None:
    assert validate(value) == value


@pytest.mark.parametrize(("validate", "value"), BAD)
def test_bad_names_are_refused_with_their_path(validate: Callable[..., str], value: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        validate(value, "request.field")
    assert caught.value.field == "request.field"
    assert str(caught.value).startswith("request.field: ")
    assert len(str(caught.value)) < 200


@given(st.text(max_size=300))
def test_any_text_is_accepted_or_refused(value: str) -> None:
    for validate in {each for each, _ in (*GOOD, *BAD)}:
        try:
            assert validate(value).isascii()
        except InvalidFieldError as error:
            assert error.reason == "INVALID_FIELD"


def test_texts_for_people_stay_on_one_line_and_short() -> None:
    assert names.validate_text("训练 résumé ✓", "name") == "训练 résumé ✓"
    assert names.validate_text("", "name") == ""
    family, persian = "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\u0645\u06cc\u200c\u0634\u0648\u062f"
    for text in (family, persian, "\U0001f980\ufe0f"):
        assert names.validate_text(text, "name") == names.plain_text(text, 9) == text
    for text in ("a\nb", "a\x1b[31m", "x" * 129, "a\u202egnp", "\u200b", "\u2028", "\U000e0041"):
        with pytest.raises(InvalidFieldError):
            names.validate_text(text, "name")


def test_labels_are_kubernetes_like() -> None:
    labels = {"team": "vision", "topology.aliquot.dev/domain": "rack-3", "empty": ""}
    assert names.validate_labels(labels) == labels


@pytest.mark.parametrize(
    ("labels", "field"),
    [
        ({str(i): "" for i in range(65)}, "labels"),
        ({"": "x"}, "labels['']"),
        ({"a b": "x"}, "labels['a b']"),
        ({"/a": "x"}, "labels['/a']"),
        ({"a/b/c": "x"}, "labels['a/b/c']"),
        ({"a": "x y"}, "labels['a']"),
        ({"a": "x" * 64}, "labels['a']"),
        ({"x" * 65: "x"}, f"labels['{'x' * 63}…']"),
        ({"x." * 130 + "x/a": ""}, None),
    ],
)
def test_bad_labels_are_refused(labels: dict[str, str], field: str | None) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        names.validate_labels(labels)
    assert field is None or caught.value.field == field
