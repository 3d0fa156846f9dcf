"""Cases with a model's own weights: one layer of a Hugging Face checkpoint of Kimi-K3, cut to a rank's share."""

from k3lab.cases.checkpoint.make import case_from_checkpoint
from k3lab.cases.checkpoint.reader import Checkpoint

__all__ = ["Checkpoint", "case_from_checkpoint"]
