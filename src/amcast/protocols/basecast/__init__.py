"""BaseCast: Skeen's protocol between groups, with two consensus instances per global message in each group."""
