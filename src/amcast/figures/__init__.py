"""Small tables in, charts and one self-contained page out. Nothing here reads a trace or knows a protocol.

style               colours for light and dark backgrounds, and SVG output
charts              the four kinds of chart: curves, ranges, bars, heat maps
measured_settings   the settings of a page, and means over their runs
chart_selection     which charts a set of measures has data for
tables              the tables of the page
html_page           the HTML page
report              measures in, files out
overlay             drawings of overlays
"""
