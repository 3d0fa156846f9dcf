"""o_proj and its all-reduce over the tensor-parallel ranks."""
