"""What the fast build knows of a kernel beyond its text: alignment, what can be read twice, which barriers publish."""
