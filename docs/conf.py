"""How Sphinx makes the site of the pages in this folder: `make docs`."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_site"))

from harmofl.version import __version__

project = "harmofl"
author = "The HarmoFL software authors"
copyright = "the harmofl authors, Apache-2.0"
version = release = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "pages",
]
exclude_patterns = ["_site", "_made", "**/.ipynb_checkpoints"]
suppress_warnings = ["misc.highlighting_failure"]  # JSON with dots for what is left out

# Pages are Markdown as a forge shows it: its anchors, no language where none is named.
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
highlight_language = "text"

os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # no page needs widgets of progress
nb_execution_mode = "force"
nb_execution_timeout = 1800  # seconds of a cell; it trains, and machines are busy
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True

# Docstrings are plain text in Google's style, with `code` between backticks.
default_role = "code"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "undoc-members": False, "show-inheritance": True}
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
add_module_names = False
napoleon_use_rtype = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"harmofl {__version__}"
html_static_path = ["_site/static"]
html_css_files = ["harmofl.css"]
html_show_sphinx = False
html_copy_source = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
