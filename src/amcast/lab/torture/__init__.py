"""Torture of live clusters: real processes under traffic and faults; everything that anybody was told is compared."""
