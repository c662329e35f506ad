"""What a scope will do, decided before the first step: the parts of the model, the selected layers, the schedule, the budget."""
