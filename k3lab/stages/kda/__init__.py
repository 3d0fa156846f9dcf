"""Kimi Delta Attention: the five steps of a KDA task."""
