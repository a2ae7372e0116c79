"""The round-based protocols A_ng and A_dt."""
