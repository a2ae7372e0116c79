"""The documentation as a site: its pages (`pages.py`) and the program that builds it (`make docs`)."""
