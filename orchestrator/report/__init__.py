"""What people look at, made from stored results. Nothing here measures, computes or stores.

``documents/`` holds a record for each question: what was measured, which is best, how much holds.
Everything that is shown is made from these records: tables (``*_table``), JSON and CSV
(``as_json``, ``formats``) and frames. ``words`` has the sentences, ``text`` draws tables and
formats numbers. A new section is a document, its table and one call in its command.
"""
