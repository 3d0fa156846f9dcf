"""What is looked for while a simulation runs: races, missing drains, wrong scopes, poison."""
