"""From the training thread to the store: the handover, the queue, the writer thread, and the end of the process."""
