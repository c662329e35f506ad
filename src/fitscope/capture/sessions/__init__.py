"""TF1-style sessions and legacy Keras: the same watches, the same run, from the step that really happened.

`session` and `CaptureHook` see `sess.run`; `legacy` serves models of `tf_keras`. Everything in here imports TensorFlow, and is itself
imported only when a scope is given a session or such a model.
"""
