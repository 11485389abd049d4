"""Commands start without pandas, which pyarrow would import."""

import subprocess
import sys


def output_of(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


MAKE_AN_ARRAY = (
    "import pyarrow as pa; pa.array([1.5, None]); import sys; print('pandas' in sys.modules)"
)


def test_pyarrow_imports_pandas_by_itself() -> None:
    assert output_of(MAKE_AN_ARRAY) == "True", "else the hook can go"


def test_the_hook_keeps_pandas_out() -> None:
    hook = "from orchestrator.results.pandas_hook import leave_pandas_out; leave_pandas_out(); "
    assert output_of(hook + MAKE_AN_ARRAY) == "False"


def test_the_hook_leaves_pandas_that_is_imported_already() -> None:
    code = (
        "import pandas; from orchestrator.results.pandas_hook import leave_pandas_out; "
        "leave_pandas_out(); import pandas.api.types; print(pandas.DataFrame({'a': [1]}).size)"
    )
    assert output_of(code) == "1"
