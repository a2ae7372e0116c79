"""A_ge and A_ge*: timestamps by consensus in each group, with stages skipped where the order is certain without."""
