"""TF1 sessions and legacy Keras: the same watches and the same run, recorded from the step itself.

`session` and `CaptureHook` record `sess.run`; `legacy` records models of `tf_keras`. Every module here imports TensorFlow, so
Python imports them only when a scope gets a session or such a model.
"""
