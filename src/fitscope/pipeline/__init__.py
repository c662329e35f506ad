"""From the training thread to the store: the hand-over, the queue, the writer thread, and the end of the process."""
