"""Images as OCI layouts: what the Containerfiles say, by digests; whose they are, no secrets, with an SBOM."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.distributions import Clean
from tests.packaging.layout import REPOSITORY
from tools.image import (
    BASE_NAME,
    CONFIG_TYPE,
    LAYER_TYPE,
    MANIFEST_TYPE,
    SBOM_TYPE,
    ImageError,
    Layout,
    assemble,
    layer,
    read_stage,
)

pytestmark = pytest.mark.timeout(600)
COORDINATOR = REPOSITORY / "deploy" / "coordinator" / "Containerfile"
AGENT = REPOSITORY / "deploy" / "daemonset" / "Containerfile"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, laptop: Clean) -> Path:
    """What a build stage leaves: a clean environment with the wheel and what it requires."""
    folder = tmp_path_factory.mktemp("root")
    (folder / "opt").mkdir()
    (folder / "opt" / "aliquot").symlink_to(laptop.folder)
    return folder


@pytest.fixture(scope="module")
def image(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("image")
    assemble(read_stage(COORDINATOR), root, out)
    return out


def manifests(folder: Path) -> dict[str, Any]:
    """By what they are: image, sbom."""
    layout, found = Layout(folder), {}
    for entry in json.loads((folder / "index.json").read_text())["manifests"]:
        document = json.loads(layout.blob(entry))
        assert len(layout.blob(entry)) == entry["size"]
        found["sbom" if document.get("artifactType") == SBOM_TYPE else "image"] = document
    return found


def config_of(folder: Path) -> Any:
    return json.loads(Layout(folder).blob(manifests(folder)["image"]["config"]))


def members(folder: Path) -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    """Of the last layer."""
    plain = gzip.decompress(Layout(folder).blob(manifests(folder)["image"]["layers"][-1]))
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        found = {}
        for each in archive.getmembers():
            file = archive.extractfile(each) if each.isfile() else None
            found[each.name] = (each, file.read() if file is not None else b"")
        return found


def test_index_manifest_configuration_and_layers_are_what_their_digests_say(image: Path) -> None:
    assert json.loads((image / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    document = manifests(image)["image"]
    assert document["mediaType"] == MANIFEST_TYPE
    assert document["config"]["mediaType"] == CONFIG_TYPE
    assert [each["mediaType"] for each in document["layers"]] == [LAYER_TYPE]
    assert document["annotations"][BASE_NAME].startswith("docker.io/library/python:")
    layout = Layout(image)
    diffs = config_of(image)["rootfs"]["diff_ids"]
    for each, diff in zip(document["layers"], diffs, strict=True):
        content = layout.blob(each)
        assert len(content) == each["size"]
        assert f"sha256:{hashlib.sha256(gzip.decompress(content)).hexdigest()}" == diff
    named = {path.name for path in (image / "blobs" / "sha256").iterdir()}
    assert named == {hashlib.sha256((image / "blobs" / "sha256" / name).read_bytes()).hexdigest() for name in named}


def test_it_runs_as_nobody_and_what_the_containerfile_says(image: Path) -> None:
    config = config_of(image)["config"]
    assert config["User"] == "65532:65532"
    assert config["Cmd"] == ["aliquot-coordinator"]
    assert set(config["ExposedPorts"]) == {"7070/tcp", "7071/tcp", "7074/tcp"}
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    path = next(each for each in config["Env"] if each.startswith("PATH="))
    assert path.startswith("PATH=/opt/aliquot/bin:")
    # The agent alone is root: it follows and ends programs of any user.
    assert (read_stage(AGENT).user, read_stage(AGENT).extras) == ("0:0", "agent,kubernetes")
    assert read_stage(COORDINATOR).extras == "coordinator,postgres,kubernetes,console,notify,tracing"


def test_nothing_in_it_has_rights_of_others_or_names_this_machine(image: Path, laptop: Clean) -> None:
    found = members(image)
    here = str(laptop.folder).encode()
    for name, (info, content) in found.items():
        assert name.startswith("opt/aliquot"), name
        assert (info.uid, info.gid, info.mtime) == (0, 0, 0)
        assert not info.mode & 0o7022, f"{name}: {info.mode:o}"
        assert here not in content, name
        assert b"PRIVATE KEY-----\n" not in content, name
    program = found["opt/aliquot/bin/aliquot"][1]
    assert program.startswith(b"#!/opt/aliquot/bin/python\n")
    assert found["opt/aliquot/bin/python"][0].linkname == "/usr/local/bin/python3"
    assert any(name.endswith("aliquot/client/__init__.py") for name in found)


def test_the_bill_of_materials_is_valid_whole_and_of_this_image(image: Path, laptop: Clean) -> None:
    referrer = manifests(image)["sbom"]
    text = Layout(image).blob(referrer["layers"][0]).decode()
    # Imported here: it takes seconds, and every worker imports this module.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    installed = {path.name.split("-")[0] for path in laptop.folder.glob("lib/python*/site-packages/*.dist-info")}
    listed = {each["name"].replace("-", "_") for each in bill["components"]}
    assert {name.lower() for name in installed} == listed
    assert all(each["version"] and each["purl"].startswith("pkg:pypi/") for each in bill["components"])
    needs = {each["ref"]: each.get("dependsOn", []) for each in bill["dependencies"]}
    (ours,) = (ref for ref in needs if ref.startswith("pkg:pypi/aliquot@"))
    assert any(ref.startswith("pkg:pypi/msgspec@") for ref in needs[ours])
    (entry,) = (each for each in json.loads((image / "index.json").read_text())["manifests"] if "platform" in each)
    assert referrer["subject"]["digest"] == entry["digest"]
    assert members(image)["opt/aliquot/sbom.cdx.json"][1].decode() == text


def small(folder: Path) -> Path:
    """A root with next to nothing in it."""
    site = folder / "opt" / "aliquot" / "lib" / "python3.13" / "site-packages"
    (site / "thing-1.0.dist-info").mkdir(parents=True)
    (site / "thing-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
    (site / "thing.py").write_text("x = 1\n")
    return folder


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    stage, first = read_stage(COORDINATOR), small(tmp_path / "a")
    second = tmp_path / "b"
    shutil.copytree(first, second)
    assert assemble(stage, first, tmp_path / "1") == assemble(stage, second, tmp_path / "2")


def test_over_a_base_it_is_whole(tmp_path: Path) -> None:
    base = Layout(tmp_path / "base")
    plain = b"the base's files"
    config = {
        "os": "linux",
        "architecture": "amd64",
        "config": {"Env": ["PATH=/base/bin", "LANG=C.UTF-8"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(plain).hexdigest()}"]},
    }
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": base.put_json(config, CONFIG_TYPE),
        "layers": [base.put(gzip.compress(plain), LAYER_TYPE)],
    }
    index = {"schemaVersion": 2, "manifests": [base.put_json(document, MANIFEST_TYPE)]}
    (tmp_path / "base" / "index.json").write_text(json.dumps(index))
    assemble(read_stage(COORDINATOR), small(tmp_path / "root"), tmp_path / "out", base=tmp_path / "base")
    found = config_of(tmp_path / "out")
    assert len(found["rootfs"]["diff_ids"]) == len(manifests(tmp_path / "out")["image"]["layers"]) == 2
    assert "PATH=/opt/aliquot/bin:/base/bin" in found["config"]["Env"]
    assert "LANG=C.UTF-8" in found["config"]["Env"]
    with pytest.raises(ImageError, match="no image for linux/riscv64"):
        assemble(
            read_stage(COORDINATOR),
            tmp_path / "root",
            tmp_path / "other",
            base=tmp_path / "base",
            architecture="riscv64",
        )


@pytest.mark.parametrize(
    ("name", "content", "mode", "why"),
    [
        ("server.key", b"-----BEGIN EC PRIVATE KEY-----\nMHc\n", 0o600, "a private key"),
        (".netrc", b"machine x", 0o600, "holds secrets"),
        ("tool", b"x", 0o4755, "rights of its owner"),
    ],
)
def test_what_must_not_be_in_an_image_is_refused(
    tmp_path: Path, name: str, content: bytes, mode: int, why: str
) -> None:
    root = small(tmp_path)
    file = root / "opt" / "aliquot" / name
    file.write_bytes(content)
    file.chmod(mode)
    with pytest.raises(ImageError, match=why):
        layer(read_stage(COORDINATOR), root, {}, 0)


def test_an_instruction_that_is_not_understood_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "Containerfile"
    path.write_text(COORDINATOR.read_text().replace("USER 65532", "VOLUME /data\nUSER 65532"))
    with pytest.raises(ImageError, match="VOLUME in the last stage"):
        read_stage(path)
    path.write_text(COORDINATOR.read_text().replace("USER 65532:65532\n", ""))
    with pytest.raises(ImageError, match="USER"):
        read_stage(path)
