"""The top command, and how every failure ends: one sentence on stderr and an exit code that says what kind it was."""

from __future__ import annotations

import errno
import os
import traceback
from typing import Any

import click

from k3lab import __version__
from k3lab.errors import BadInput, InternalFault, K3LabError

FAILED_BOUND = 1
INTERRUPTED = 130
FULL = (errno.ENOSPC, errno.EDQUOT)


class Program(click.Group):
    """A group that turns every exception of its commands into a sentence and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            click.echo("k3lab: interrupted.", err=True)
            ctx.exit(INTERRUPTED)
        except Exception as error:
            if isinstance(error, BrokenPipeError):
                raise  # click ends quietly when the reader of a pipe has gone
            if ctx.params.get("debug"):
                traceback.print_exc()
            known = as_known(error)
            click.echo(f"k3lab: {' '.join(str(known).split())}", err=True)
            ctx.exit(known.exit_code)


def as_known(error: Exception) -> K3LabError:
    """`error` as one of k3lab's own: a full disk, too little memory, or a bug of k3lab."""
    if isinstance(error, K3LabError):
        return error
    if isinstance(error, OSError) and error.errno in FULL:
        return BadInput(f"output: cannot be written: {os.strerror(error.errno or 0)}.")
    if isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error):
        return BadInput("memory: expected room for this case, got none; use fewer tokens or --geometry mini.")
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return InternalFault(f"this is a bug in k3lab ({what}); run it again with --debug to see where.")


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="k3lab", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, envvar="K3LAB_DEBUG", help="Show tracebacks (or set K3LAB_DEBUG=1).")
def cli(debug: bool) -> None:
    """See what a fused decode kernel of Kimi-K3 does to every bit that passes through it.

    Start with `k3lab report all --geometry mini`, a small model that takes seconds, then leave the option out.

    \b
    Exit codes: 0 fine, 1 a comparison failed its bound, 2 bad input, 3 backend not available, 4 internal fault.
    """
