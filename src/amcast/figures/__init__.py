"""Small tables in, pictures and one self-contained page out. Nothing here reads a trace or knows a protocol.

style      colours, for light and dark surroundings, and how a drawing becomes SVG
charts     the four kinds of drawing: curves, ranges, bars, heat maps
choice     which pictures and tables a set of measures deserves
page       the HTML page
report     measures in, files out
"""
