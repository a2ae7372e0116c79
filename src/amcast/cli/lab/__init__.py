"""Commands of the laboratory: simulate, measure delays, fuzz, explore, replay and shrink."""
