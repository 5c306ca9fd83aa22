"""Reports on recipes, parts and runs: text, tables and drawings.

show, explain, diff  an architecture, the origin of a value, differences: as data, and as text
picture              a drawing of a Blueprint; svg.py, picture_text.py and gallery.py render it
table, parts_table   columns that fit a terminal
page, plots          HTML pages of sections, and their plots
"""
