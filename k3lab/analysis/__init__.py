"""What comes out of runs: comparisons, error budgets, charts and reports."""
