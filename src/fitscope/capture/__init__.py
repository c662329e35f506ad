"""How tensors leave the training step: taps in the step, the tapped program beside the user's own, one adapter per framework."""
