"""Histories of calls of any size, judged by many tasks."""
