"""The presentation of a run. `overview` collects the numbers, `squeeze` fits them into a width, `text` draws.

It belongs to the reading side: it imports no framework and no capturing code.
"""
