"""Pictures need matplotlib, which ``make install`` brings: without it these tests are left out."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("matplotlib") else ["test_*.py"]
