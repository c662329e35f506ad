"""Attacks on the store, the readers, the server and the trainings, at random and for as long as one likes: `make campaign`.

Each kind of attack is a function that takes a seed and returns a `Round`: how many things it tried, how many went as promised,
how many flushed records were lost, the slowest in seconds, and what failed, in words. The seed decides everything that is drawn, so
the same seed tries the same. Attacks in which processes race decide by the seed what is raced, not who wins.

Rounds are appended to `campaign.jsonl`, so an interrupted campaign goes on where it was. `python -m campaign --write` makes the table
in docs/reliability.md from that file.
"""
