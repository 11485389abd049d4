"""One file per engine, and a record of what differs between them (``engine.py``)."""
