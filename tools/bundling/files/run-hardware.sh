#!/bin/sh
# Tries everything that needs a real card, unattended:   sh run-hardware.sh [STAGE ...]
#
# One line of JSON for each stage on standard output; each ends within nine minutes. Lines and what stages said are kept in
# RESULTS (results in this folder). `sh run-hardware.sh --help` lists the stages. Run it as root.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
env=${ENVIRONMENT:-$here/env}
[ -x "$env/bin/aliquot" ] || sh "$here/install.sh" "$env" >&2
results=${RESULTS:-$here/results}
# The environment's programs, since stages start them by name.
PATH=$env/bin:$PATH
export PATH
cd "$here/hardware"
exec "$env/bin/python" -m bench.stages --results "$results" "$@"
