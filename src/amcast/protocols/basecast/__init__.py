"""BaseCast: timestamps by consensus, twice."""
