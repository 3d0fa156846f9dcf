"""Launches as FlyDSL kernels: the ABI read off the declaration, the stages by role, lowering with a cache."""
