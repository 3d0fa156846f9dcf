"""The modelled clock: a time of its own for every wave of a simulation, computed from a table of costs.

    >>> run = k3lab.run("k1", case, backend="sim", sim=Options(clock="mi355x"))
    >>> run.clock.end_ns, run.clock.handoffs.waited_ns.max()

Every figure that comes from it is *modelled*. It was fitted to no measurement. It serves to see who waits for whom, and
what a change of structure does to that; it does not predict what a device will take. The costs are in one table file a
device (`mi355x.json`), each with its unit, its source, and whether it is public, derived from public figures or
assumed. `Options(clock=dataclasses.replace(costs_of("mi355x"), name="slow links", link_bytes_per_s=10e9))` changes
them.

The model
    *Instructions.* A wave runs its operations one after the other, in the order of the IR, each for its fixed cycles;
    an operation counts as one vector instruction for each 32-bit register of its result. Renaming registers is free. A
    matrix instruction takes its passes. At the end of a block, waves that ran it together on one SIMD are set apart so
    that its vector unit and its matrix core serve one after the other, and likewise waves at their workgroup's LDS.
    *Loads.* A load takes its latency and is waited for where its value is first used, in whatever block. A wave's loads
    from global memory come back in order. The first touch of a line by a device in a launch goes to device memory,
    whose bandwidth all of the device's loads and stores share; later touches take the latency of a cache, or of the
    fabric where they have device or system scope. A line on its way is waited for, but no longer than fetching it would
    take.
    *Stores.* A wave goes on at once. A wait for vmcnt 0, and the end of the launch, wait for its stores. A store to
    another device's memory takes the bandwidth of the link between the two.
    *Barriers.* All waves go on when the last one has come.
    *Hand-offs.* Every word carries the time at which it was stored. Who loads a word that another workgroup stored in
    this launch, or another device, gets it no sooner than that time plus the latency of a hand-off. A look of a waiting
    loop that finds nothing takes no time of its own: the wave returns to when it first looked, so the look that finds
    something is all that counts, in whatever order the simulator ran the waves.
    *Launches.* A device's launch begins a gap after the end of the one before, with empty caches. All workgroups that
    have room begin at once.
    *The counter.* What waves read is their modelled time in ticks. A wait with a time limit gives up when nothing else
    in the simulation can go on; until then time passes for it in jumps of 1000 ticks.

What it leaves out
    The compiler: no scheduling, folding, fusing, scalar unit or spills. Instruction fetch and its cache. Bank conflicts
    of LDS, and the limits of the path between a compute unit and its caches. The caches' sizes and their bandwidth:
    what a launch has touched stays near. Address translation. Refresh and the difference between reads and writes of
    device memory, whose peak bandwidth is taken as reached. The links' bandwidth for loads. Clocks that change with
    load and power. How long it takes to start workgroups. Private memory, which takes no time. How far a poll is from
    its next look when the word comes (the hand-off's latency holds the mean of it). A loop that counts its looks is
    timed as often as the simulator ran it.

What the order of simulation does
    The simulator runs waves in an order that is not that of their times. The default schedule gives the same times in
    every run. Nothing is read before it was stored, and a wave's time never goes back. But which wave is the first to
    touch a line, which waves run a block together, and what is left of a window of bandwidth (`bandwidth.Calendar`) do
    depend on the order: other schedules give other ends, some percent apart.
"""

from k3lab.sim.clock.costs import Costs, Figure, costs_of, table
from k3lab.sim.clock.record import Barriers, Handoffs, Launches, Modelled, Reads, Waves

__all__ = ["Barriers", "Costs", "Figure", "Handoffs", "Launches", "Modelled", "Reads", "Waves", "costs_of", "table"]
