"""The plan of a scope, made before the first step: the parts of the model, the selected layers, the schedule, the budget."""
