"""A CPU simulator of FlyDSL's lowered IR: every lane of every wave, a basic block at a time, in NumPy.

It cannot see instruction selection, register pressure, waitcnt insertion, hazards, or how matrix cores accumulate on
silicon; `k3lab.lowering` looks at what the real compiler emits.
"""
