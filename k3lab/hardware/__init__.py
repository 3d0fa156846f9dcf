"""Models of what the hardware computes, shared by twin and simulator: matrix instructions, exp2, rsq, rcp.

NumPy only, but for `approx_torch`, which gives the same bits on tensors of other devices.
"""
