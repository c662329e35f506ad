"""How a run looks. `overview` takes out the numbers, `squeeze` fits them into a width, `text` draws.

Part of the reading side: imports no framework and nothing that captures.
"""
