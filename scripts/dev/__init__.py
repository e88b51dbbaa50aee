"""What scripts/services and scripts/pytools are made of; Python's standard library only."""
