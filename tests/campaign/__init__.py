"""Attacks on the store, the readers and the server, at random and for as long as one likes: `make campaign`.

Each kind of attack is a function that takes a seed and gives a `Round`: how many things it tried, how many went as promised,
how many flushed records were lost, the slowest in seconds, and what failed, in words. A seed says all: the same one does the same.
Rounds are appended to `campaign.jsonl`, so an interrupted campaign goes on where it was; the table in docs/reliability.md is
made of that file.
"""
