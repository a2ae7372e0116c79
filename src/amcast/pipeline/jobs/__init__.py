"""What the command line runs: each job reads, transforms and writes, and decides nothing else."""
