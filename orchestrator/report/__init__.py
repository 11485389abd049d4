"""Makes what people look at from stored results. Nothing here measures, computes or stores.

``documents/`` has a record for each question: what was measured, which is best, how much holds.
Everything that is shown is made from these records: tables (``*_table``, which a ``form`` writes
for a terminal or as Markdown), JSON and CSV (``as_json``, ``formats``), frames and pictures
(``plot/``). ``columns`` names the values of a point, ``words`` has the sentences, ``text`` draws
tables and formats numbers, and ``page/`` is the HTML page. A section is a document, lines for a
terminal and JSON made from it, which its command prints, and a place in the page
(docs/extending.md).
"""
