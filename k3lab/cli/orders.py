"""`k3lab orders`: how far the order in which an all-reduce sums the ranks moves K2a's results."""

from __future__ import annotations

from typing import Any

import click

from k3lab.cli import options
from k3lab.cli.progress import progress


@click.command()
@options.case_or_file
@options.run_options
def orders(mfma: str | None, device: str | None, **described: Any) -> None:
    """Sum K2a's ranks in rank order, rotated by owner, pairwise and in float64: what the order alone changes.

    The twin runs once for each order, on the same inputs and with everything else the same.
    """
    from k3lab.analysis.orders import LAUNCH, order_probe, order_steps
    from k3lab.cli import show

    case = options.make_case(LAUNCH, described)
    with progress("orders", order_steps()) as step:
        made = order_probe(case, options.mfma_model(mfma), device, step)
    show.console().print(show.orders_table(made))
    show.console().print(made.sentence, soft_wrap=True)
