"""The command line within a test that serves a coordinator on its own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import io

from aliquot.cli.main import main


async def cli(address: str, *arguments: str) -> tuple[int, str, str]:
    """A command of `aliquot`, in a thread of its own: its exit code, and what it wrote on stdout and stderr."""

    def run() -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([*arguments, "--coordinator", address])
        return code, out.getvalue(), err.getvalue()

    return await asyncio.to_thread(run)
