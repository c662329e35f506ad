"""Takes tensors out of the training step: taps in the step, the tapped program alongside the user's own, one adapter per framework."""
