"""What people look at, made of typed results; nothing here measures, computes or stores.

One file per section: ``points``, ``launches``, ``best``, ``run`` (a single run), ``live`` (a sweep under way). A
section gives lines for a terminal and a document for JSON; a new one is a file here and one call in its command.
``text`` has tables and numbers in words, ``documents`` writes JSON and CSV.
"""
