"""What people look at, made from stored results. Nothing here measures, computes or stores.

One file per section: ``points``, ``launches``, ``best``, ``run`` (a single ``load``), ``live`` (a
sweep under way). A section yields lines for a terminal and a document for JSON. A new section is a
file here and one call in its command. ``text`` draws tables and formats numbers, ``documents``
writes JSON and CSV.
"""
