"""What kernels load and store: the spaces, the arrays mapped into them, regions, and a weaker memory."""
