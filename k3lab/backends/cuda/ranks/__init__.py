"""Ranks on several GPUs of one host: a process a GPU, peer buffers that all of them reach, a fence, and one clock."""
