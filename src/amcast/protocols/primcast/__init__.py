"""PrimCast: one process class, and the components it owns."""
