"""AttnRes: the softmax mix over earlier block outputs and the running prefix (arXiv 2603.15031)."""
