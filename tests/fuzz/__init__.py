"""Random models trained with and without a scope: `make fuzz`. CONTRIBUTING.md describes the parts."""
