"""Campaigns: seeds of many protocols in Spark tasks, their results as a table."""
