"""Small programs written after the official Keras guides and examples, each trained with and without a scope.

`make programs` trains all of them on every backend and prints one table; `test_quick.py` trains a few of them in CI. A program
is a module with one function, `train(scope, callbacks)`; [catalog.py](catalog.py) lists them all.
"""
