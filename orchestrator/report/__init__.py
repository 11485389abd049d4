"""What people look at, made from stored results. Nothing here measures, computes or stores.

``documents/`` holds a record for each question: what was measured, which is best, how much holds.
Everything that is shown is made from these records: tables (``*_table``, written for a terminal or
as Markdown by a ``form``), JSON and CSV (``as_json``, ``formats``) and frames. ``columns`` names the
values of a point. ``words`` has the sentences, ``text`` draws tables and
formats numbers. ``page/`` is the HTML page. A new section is a document, its table, one call in its
command, and a place in the page.
"""
