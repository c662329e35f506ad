"""The generator of the docs site: Markdown in, a folder of plain files out. `docs/make_site.py` runs it.

It needs only markdown-it-py and Pygments, which Rich brings along, so every test run can build the whole site.
"""
