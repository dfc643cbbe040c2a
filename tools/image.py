"""Assemble an image from a Containerfile's last stage, without a registry or root: an OCI layout with its SBOM.

    python tools/image.py deploy/coordinator/Containerfile --wheel dist/any/aliquot-*.whl --out build/image

What the build stage leaves is made by pip for the image's Python (or is given, `--root`). Over which base it goes says
the Containerfile; with `--base` (an OCI layout of it, as `skopeo copy docker://... oci:DIR` leaves one) the image is
whole, without it has this layer only, and says so in its annotations. The same input gives the same bytes. Refused are:
what the last stage has that is not understood, private keys, and files that get rights of others.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shlex
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1]))
from tools.sbom import sbom

REPOSITORY: Final = Path(__file__).parents[1]
PREFIX: Final = "opt/aliquot"
INDEX_TYPE: Final = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE: Final = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE: Final = "application/vnd.oci.image.layer.v1.tar+gzip"
SBOM_TYPE: Final = "application/vnd.cyclonedx+json"
EMPTY_TYPE: Final = "application/vnd.oci.empty.v1+json"
BASE_NAME: Final = "org.opencontainers.image.base.name"
TITLE: Final = "org.opencontainers.image.title"
_PYTHON: Final = "/usr/local/bin/python3"
"""Of the base."""
_SECRET: Final = re.compile(rb"^-----BEGIN [A-Z ]*PRIVATE KEY-----", re.MULTILINE)
_NO_FILES: Final = frozenset({".netrc", ".pypirc", ".env", "id_rsa", "id_ed25519", "credentials.json"})


class ImageError(Exception):
    """It can't be assembled; the text says why."""


@dataclass
class Stage:
    """The last stage of a Containerfile."""

    base: str
    extras: str
    """What the build stage installs."""
    labels: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    copies: list[tuple[str, str]] = field(default_factory=list)
    user: str = ""
    ports: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)


def read_stage(containerfile: Path) -> Stage:
    """Raises ImageError for what is not understood: an image must not silently lack something."""
    text = re.sub(r"\\\n", " ", containerfile.read_text())
    lines = [line.split(None, 1) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    arguments: dict[str, str] = {}

    def filled(text: str) -> str:
        return re.sub(r"\$\{(\w+)\}", lambda found: arguments.get(found[1], found[0]), text)

    stage = Stage("", "")
    for word, rest in ((line[0], line[1] if len(line) > 1 else "") for line in lines):
        match word:
            case "ARG":
                name, _, value = rest.partition("=")
                arguments[name] = value
            case "FROM":
                stage = Stage(filled(rest.split()[0]), stage.extras)
            case "LABEL":
                stage.labels |= dict(pair.split("=", 1) for pair in shlex.split(rest))
            case "ENV":
                stage.environment |= dict(pair.split("=", 1) for pair in shlex.split(rest))
            case "COPY" if rest.startswith("--from=build "):
                source, target = rest.split()[1:]
                stage.copies.append((source, target))
            case "COPY" | "RUN" if not stage.copies and not stage.user:
                found = re.search(r"\}\[([-a-z,]+)\]", filled(rest))  # the build stage
                stage.extras = found[1] if found else stage.extras
            case "USER":
                stage.user = rest.strip()
            case "EXPOSE":
                stage.ports += rest.split()
            case "CMD":
                stage.command = json.loads(rest)
            case _:
                raise ImageError(f"{containerfile}: {word} in the last stage is not understood")
    if not stage.copies or not stage.user or not stage.command:
        raise ImageError(f"{containerfile}: the last stage needs COPY --from=build, USER and CMD")
    return stage


def platforms(newest: str) -> list[str]:
    """The tags of wheels that run where the newest does: pip does not know by itself that older ones do."""
    found = re.fullmatch(r"manylinux_2_(\d+)_(\w+)", newest)
    if found is None:
        return [newest]
    minor, machine = int(found[1]), found[2]
    return [f"manylinux_2_{each}_{machine}" for each in range(minor, 4, -1)] + [f"manylinux2014_{machine}"]


def install(wheel: Path, extras: str, root: Path, python: str, platform: str) -> None:
    """What the build stage's pip leaves, for another Python than this: an environment at /opt/aliquot."""
    prefix = root / PREFIX
    site = prefix / "lib" / f"python{python}" / "site-packages"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(site)]
    command += ["--only-binary", ":all:", "--implementation", "cp", "--python-version", python]
    for each in (*platforms(platform), "any"):
        command += ["--platform", each]
    subprocess.run([*command, f"{wheel}[{extras}]"], check=True)  # noqa: S603 - pip, with what the Containerfile says
    (site / "bin").rename(prefix / "bin")
    for name in ("python", "python3", f"python{python}"):
        (prefix / "bin" / name).symlink_to(_PYTHON)
    home = str(Path(_PYTHON).parent)
    (prefix / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\nversion = {python}\n")


def files_of(stage: Stage, root: Path) -> Iterator[tuple[str, Path]]:
    """What goes into the layer, in order: its path in the image, and where it is here."""
    for source, target in sorted(stage.copies, key=lambda pair: pair[1]):
        top = root / source.strip("/")
        if not top.is_dir():
            raise ImageError(f"{top}: not there, and the Containerfile copies {source}")
        for folder, names, files in os.walk(top):
            names[:] = sorted(name for name in names if name != "__pycache__")
            inside = Path(target.strip("/")) / Path(folder).relative_to(top)
            yield str(inside), Path(folder)
            for name in sorted([*files, *(each for each in names if (Path(folder) / each).is_symlink())]):
                if not (name.endswith(".pyc") or name == "direct_url.json" or name.lower().startswith("activate")):
                    yield str(inside / name), Path(folder) / name


def layer(stage: Stage, root: Path, extra: Mapping[str, bytes], epoch_s: int) -> bytes:
    """The layer as a tar: sorted, of root, without times. Raises ImageError for what must not be in an image."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, path in files_of(stage, root):
            _add(archive, name, path, root, epoch_s)
        for name, content in sorted(extra.items()):
            _add_bytes(archive, name, content, 0o644, epoch_s)
    return out.getvalue()


def _add(archive: tarfile.TarFile, name: str, path: Path, root: Path, epoch_s: int) -> None:
    if Path(name).name in _NO_FILES:
        raise ImageError(f"{name}: such a file holds secrets")
    # The interpreter is the base's.
    python = Path(name).name.startswith("python") and Path(name).parent.name == "bin"
    if path.is_symlink() and (python or path.resolve().is_relative_to((root / PREFIX).resolve())):
        info = tarfile.TarInfo(name)
        info.type, info.mtime = tarfile.SYMTYPE, epoch_s
        info.linkname = _PYTHON if python else str(path.readlink())
        archive.addfile(info)
        return
    mode = path.stat().st_mode
    if mode & (stat.S_ISUID | stat.S_ISGID) and not stat.S_ISDIR(mode):
        raise ImageError(f"{name}: has the rights of its owner or group")
    if stat.S_ISDIR(mode):
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.mtime = tarfile.DIRTYPE, 0o755, epoch_s
        archive.addfile(info)
        return
    content = path.read_bytes()
    if _SECRET.search(content):
        raise ImageError(f"{name}: a private key")
    if Path(name).parent.name == "bin" and content.startswith(b"#!"):
        content = re.sub(rb"^#!\S*python\S*", f"#!/{PREFIX}/bin/python".encode(), content, count=1)
    if Path(name).name == "pyvenv.cfg":
        content = re.sub(rb"^(home|executable|command) = .*\n", b"", content, flags=re.MULTILINE)
        content = f"home = {Path(_PYTHON).parent}\n".encode() + content
    _add_bytes(archive, name, content, 0o755 if mode & stat.S_IXUSR else 0o644, epoch_s)


def _add_bytes(archive: tarfile.TarFile, name: str, content: bytes, mode: int, epoch_s: int) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(content), mode, epoch_s
    archive.addfile(info, io.BytesIO(content))


class Layout:
    """An OCI image layout in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
        (folder / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))

    def put(self, content: bytes, media_type: str) -> dict[str, Any]:
        """Store; returns its descriptor."""
        digest = hashlib.sha256(content).hexdigest()
        (self.folder / "blobs" / "sha256" / digest).write_bytes(content)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    def put_json(self, document: Mapping[str, Any], media_type: str) -> dict[str, Any]:
        """Store; returns its descriptor."""
        return self.put(json.dumps(document, sort_keys=True, separators=(",", ":")).encode(), media_type)

    def blob(self, descriptor: Mapping[str, Any]) -> bytes:
        """Read. Raises ImageError where it is not what its digest says."""
        algorithm, _, digest = descriptor["digest"].partition(":")
        content: bytes = (self.folder / "blobs" / algorithm / digest).read_bytes()
        if algorithm != "sha256" or hashlib.sha256(content).hexdigest() != digest:
            raise ImageError(f"{self.folder}: {descriptor['digest']} is something else")
        return content


def base_of(folder: Path, architecture: str) -> tuple[Layout, dict[str, Any], dict[str, Any]]:
    """The manifest and the configuration of a base's layout, for this architecture. Raises ImageError."""
    layout = Layout(folder)
    waiting = list(json.loads((folder / "index.json").read_text())["manifests"])
    while waiting:
        descriptor = waiting.pop(0)
        document = json.loads(layout.blob(descriptor))
        if "manifests" in document:
            waiting += document["manifests"]
            continue
        config = json.loads(layout.blob(document["config"]))
        if (config.get("os"), config.get("architecture")) == ("linux", architecture):
            return layout, document, config
    raise ImageError(f"{folder}: no image for linux/{architecture}")


def assemble(
    stage: Stage, root: Path, out: Path, *, base: Path | None = None, architecture: str = "amd64", epoch_s: int = 0
) -> dict[str, Any]:
    """Write the layout; returns the descriptor of the image's manifest. Raises ImageError."""
    bill = sbom(sorted((root / PREFIX).glob("lib/python*/site-packages")), stage.labels.get(TITLE, "aliquot"))
    plain = layer(stage, root, {f"{PREFIX}/sbom.cdx.json": bill}, epoch_s)
    layout = Layout(out)
    layers, diffs, environment = [], [], {}
    if base is not None:
        source, manifest, config = base_of(base, architecture)
        layers = [layout.put(source.blob(each), each["mediaType"]) for each in manifest["layers"]]
        diffs = list(config["rootfs"]["diff_ids"])
        environment = dict(pair.split("=", 1) for pair in config.get("config", {}).get("Env") or ())
    environment |= {
        name: value.replace("$PATH", environment.get("PATH", "/usr/local/bin:/usr/bin:/bin"))
        for name, value in stage.environment.items()
    }
    layers.append(layout.put(gzip.compress(plain, 6, mtime=0), LAYER_TYPE))
    diffs.append(f"sha256:{hashlib.sha256(plain).hexdigest()}")
    config = {
        "os": "linux",
        "architecture": architecture,
        "config": {
            "User": stage.user,
            "Env": [f"{name}={value}" for name, value in sorted(environment.items())],
            "Cmd": stage.command,
            "ExposedPorts": {f"{port}/tcp": {} for port in stage.ports},
            "Labels": stage.labels,
        },
        "rootfs": {"type": "layers", "diff_ids": diffs},
    }
    annotations = {BASE_NAME: stage.base, **({} if base is not None else {"dev.aliquot.image.base": "left out"})}
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": layout.put_json(config, CONFIG_TYPE),
        "layers": layers,
        "annotations": annotations,
    }
    image = layout.put_json(manifest, MANIFEST_TYPE)
    referrer = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": SBOM_TYPE,
        "config": layout.put(b"{}", EMPTY_TYPE),
        "layers": [layout.put(bill, SBOM_TYPE)],
        "subject": image,
    }
    platform = {"os": "linux", "architecture": architecture}
    entries = [
        {**image, "platform": platform, "annotations": {"org.opencontainers.image.ref.name": "latest"}},
        {**layout.put_json(referrer, MANIFEST_TYPE), "artifactType": SBOM_TYPE},
    ]
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": entries}
    (out / "index.json").write_text(json.dumps(index, sort_keys=True, indent=1))
    return image


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("containerfile", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--wheel", type=Path, help="installed by pip for the image's Python")
    given.add_argument("--root", type=Path, help="a folder with opt/aliquot in it")
    parser.add_argument("--base", type=Path, help="an OCI layout of the base")
    parser.add_argument("--python", default="3.13")
    parser.add_argument("--platform", default="manylinux_2_36_x86_64", help="of the base: %(default)s")
    arguments = parser.parse_args()
    epoch_s = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    try:
        stage = read_stage(arguments.containerfile)
        with tempfile.TemporaryDirectory() as folder:
            root = arguments.root or Path(folder)
            if arguments.wheel is not None:
                install(arguments.wheel, stage.extras, root, arguments.python, arguments.platform)
            image = assemble(stage, root, arguments.out, base=arguments.base, epoch_s=epoch_s)
    except (ImageError, OSError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{image['digest']} {arguments.out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
