"""Histories of calls, judged from outside: what was called, what came back, and when; of any system."""
