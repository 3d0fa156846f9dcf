"""What a simulation writes down: one wave's trace, traffic by stage, accesses for the clock."""
