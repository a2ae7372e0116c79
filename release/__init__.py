"""The release: a wheel that anybody can build again byte for byte, checked, with a list of components.

Nothing is uploaded. `make release` runs `python -m release`.
"""
