"""Commands on traces and on many runs: check, view, watch, sweep, measure, report."""
