"""Spark itself: a Java for it, the session, progress of jobs, and calls in tasks."""
