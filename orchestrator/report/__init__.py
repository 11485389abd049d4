"""Makes what people look at from stored results. Nothing here measures, computes or stores.

``documents/`` has a record for each question: what was measured, which is best, how much holds.
Everything that is shown is made from these records: tables (``*_table``, which a ``form`` writes
for a terminal or as Markdown), JSON and CSV (``as_json``, ``formats``), frames and pictures
(``plot/``). ``columns`` names the values of a point, ``words`` has the sentences, ``text`` draws
tables and formats numbers, and ``page/`` is the HTML page. A new section takes a document, its
table, one call in its command, and a place in the page.
"""
