"""Pictures of the documentation; `python -m docs.pictures` makes those that show amcast at work."""
