"""The optional packages of this program, and how to install them."""

# By extra of pyproject.toml: the packages that it installs. Messages name them and not the extra,
# so what they say works wherever the program itself came from.
PACKAGES = {
    "polars": "polars>=1",
    "plots": "matplotlib>=3.9",
    "optuna": "optuna>=5,<6",
    "tables": "aiconfigurator-core==0.12.0",
}


def how_to_install(extra: str) -> str:
    """The command that installs the packages of an extra."""
    return f"pip install '{PACKAGES[extra]}'"
