"""What a scope will do, decided before the first step: the model's parts, the chosen layers, the schedule, the budget."""
