"""The tables of docs/benchmarks, which are made from published results, so that no figure in them is typed.

``tables.py`` has a function for each table of measurements: pandas makes a frame of the results, and the frame becomes
Markdown. ``papers/*.md.j2`` are the tables of the papers, of which their pages show the main rows: Markdown with Jinja
expressions in the place of figures, which call the functions of ``results.py``. ``benchmarks.whole_tables`` prints all.
"""
