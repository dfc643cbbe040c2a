"""`why` and `fits`: where a request would go or why it would wait, which nodes could take it, why a lease waits."""

from __future__ import annotations

import argparse
import re

from aliquot.cli import _options as options
from aliquot.cli import _views as views
from aliquot.cli._command import Work
from aliquot.cli._exits import Exit
from aliquot.cli._nodes import with_node_ids
from aliquot.cli._out import Out
from aliquot.client import Pool

_LEASE_ID = re.compile(r"l-.*")


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Exit code 0: it fits now (or the lease holds its devices); 4: it can never fit; 5: it does not fit now."
    )
    parser.add_argument("subject", metavar="LEASE|GPU", help="a lease's id, or a request such as 0.25(A100),10Gi")
    options.request(parser)


def _why(pool: Pool, args: argparse.Namespace, out: Out) -> int:
    if _LEASE_ID.fullmatch(args.subject):
        lease, explanation = pool.why(args.subject)
        out.document({"lease": lease, "explanation": explanation})
        out.show(*views.lease_view(lease))
        if lease.waiting is None:
            out.show(*views.explanation_view(explanation))
        fits = lease.granted or explanation.fits_now
    else:
        explanation = pool.explain(with_node_ids(pool, options.read_request(args.subject, args)))
        out.document({"explanation": explanation})
        out.show(*views.explanation_view(explanation))
        fits = explanation.fits_now
    if fits:
        return Exit.OK
    return Exit.REFUSED if explanation.impossible else Exit.NOT_NOW


WHY = Work(_configure, options.on_pool(_why))


def _configure_fits(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Says it for one member of the request, the best node first; --node names those to look at (default: all).\n"
        "`alloc --on NODE` grants it there. Exit code 0 when some node fits now, 5 when none does."
    )
    parser.add_argument("gpu", metavar="GPU", help="a request such as 0.25(A100),10Gi")
    options.request(parser)


def _fits(pool: Pool, args: argparse.Namespace, out: Out) -> int:
    request = with_node_ids(pool, options.read_request(args.gpu, args, node_ids=()))
    found = pool.fits(request, args.node_ids)
    out.document({"nodes": found})
    out.show(views.fits_table(found))
    return Exit.OK if any(fit.fits for fit in found) else Exit.NOT_NOW


FITS = Work(_configure_fits, options.on_pool(_fits))
