"""Paths in the folder that ``ray job submit --working-dir`` uploaded, which Ray unpacks in a
temporary folder of each node, named after its content.
"""

import os
import re

_UPLOADED = re.compile(r"^/.*/working_dir_files/_ray_pkg_[0-9a-f]+/(?=.)")


def shown_path(path: str) -> str:
    """A path in an uploaded folder as its user knows it: relative to that folder. Other paths stay
    as they are.
    """
    return _UPLOADED.sub("", path)


def not_uploaded(path: str) -> str | None:
    """Why a path in an uploaded folder does not exist, and what to do about it. None if it exists,
    or if the path is elsewhere.
    """
    if not _UPLOADED.match(path) or os.path.exists(path):
        return None
    return (
        f"{shown_path(path)} was not uploaded with the job (Ray leaves out what .gitignore and "
        ".rayignore name): give a path that every node has, or a name on the hub"
    )
