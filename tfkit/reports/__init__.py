"""Reports on recipes, parts and runs: text, tables and drawings.

show, explain, diff  an architecture, the origin of a value, differences: as data, and as text
picture              a drawing of a Blueprint as SVG, HTML or text; svg.py has its shapes
table, parts_table   columns that fit a terminal
"""
