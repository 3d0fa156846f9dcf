"""How fast the launches are on an NVIDIA GPU, beside torch and beside the bytes they must move."""
