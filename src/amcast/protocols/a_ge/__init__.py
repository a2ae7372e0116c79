"""A_ge and A_ge*: timestamps by consensus, with stages that are skipped."""
