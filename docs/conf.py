"""Sphinx's settings. `./scripts/docs` builds strictly: a broken link or reference fails.

Sphinx with MyST and furo, because all three are maintained, the search works offline, and the theme has a
dark mode and reads well on a phone. MkDocs has had no release since 2024, and its theme Material is in
maintenance mode.
"""

import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "iobench"
author = "the iobench authors"
release = metadata.version("iobench")
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "iobench_reference",  # writes reference/ out of the code
    "tutorial",  # runs what the tutorials show
]
exclude_patterns = ["_build", "_ext"]
nitpicky = True
# types in signatures that have no page: of other libraries, and of modules below `iobench`
nitpick_ignore_regex = [(r"py:\w+", r"(?!iobench\.\w+$).*")]

myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
smartquotes = False  # options keep both of their dashes

default_role = "code"  # docstrings write code in single backticks
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
napoleon_google_docstring = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = "iobench"
html_static_path = ["_static"]
html_css_files = ["iobench.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
