"""The facts that are recorded, their columns, their files: the contract between running and analysing."""
