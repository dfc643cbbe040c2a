#!/bin/sh
# Installs aliquot from this folder alone, without a network:   sh install.sh [DIRECTORY]
#
# DIRECTORY (env in this folder) becomes a virtual environment of PYTHON (python3). What that Python has already, PyTorch
# say, can be used in it; what is missing or too old there comes from wheels/.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
into=${1:-$here/env}
python=${PYTHON:-python3}
wanted=$(sed -n 's/^python=//p' "$here/target")

command -v "$python" >/dev/null || { echo "error: there is no $python; name one with PYTHON=/path/to/python$wanted" >&2; exit 1; }
found=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[ "$found" = "$wanted" ] || { echo "error: these wheels are for Python $wanted, and $python is $found;" \
    "name another with PYTHON=, or make the bundle for this one: make bundle PYTHON=$found" >&2; exit 1; }
(cd "$here" && sha256sum --quiet --check SHA256SUMS) || { echo "error: this folder is damaged: copy it again" >&2; exit 1; }

# Without pip of its own, which a machine may lack; the bundle's is used. Nothing but this folder is looked at.
"$python" -m venv --clear --without-pip "$into"
site=$("$into/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" -c 'import sys; print("\n".join(p for p in sys.path if p.endswith(("site-packages", "dist-packages"))))' \
    >"$site/of_the_machine.pth"
for pip in "$here"/wheels/pip-*.whl; do
    PYTHONPATH=$pip PIP_CONFIG_FILE=/dev/null "$into/bin/python" -m pip install --quiet --no-index --no-cache-dir \
        --disable-pip-version-check --root-user-action ignore --find-links "$here/wheels" --requirement "$here/requirements.txt"
done
"$into/bin/aliquot" --version
echo "installed in $into; add it to your PATH: export PATH=$into/bin:\$PATH"
