"""Agents: gradients that wait for the end of an episode, and a network that is copied into another one now and then."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from . import TRAINING, Watch, one_thread, program, tf1, variables


@program(
    "weights/policy/hidden/w", "updates/policy/hidden/w", "weight_gradients/policy/hidden/w", "predict/predictions",
    unseen=("loss", "predictions", "targets", "inputs", "activations/policy/hidden"),
)  # fmt: skip
def policy_gradient(watch: Watch) -> Any:
    """Gradients of each episode are added up in NumPy and fed to the update, which sees neither loss nor data."""
    tf1.set_random_seed(17)
    rng = np.random.default_rng(0)
    state = tf1.placeholder(tf.float32, [None, 4], name="state")
    with tf1.variable_scope("policy"):
        with tf1.variable_scope("hidden"):
            hidden = tf.nn.relu(tf.matmul(state, tf1.get_variable("w", [4, 8])))
        with tf1.variable_scope("out"):
            output = tf.nn.softmax(tf.matmul(hidden, tf1.get_variable("w", [8, 2])), name="probabilities")
    reward = tf1.placeholder(tf.float32, [None], name="reward")
    action = tf1.placeholder(tf.int32, [None], name="action")
    places = tf.range(0, tf.shape(output)[0]) * tf.shape(output)[1] + action
    responsible = tf.gather(tf.reshape(output, [-1]), places)
    loss = -tf.reduce_mean(tf.math.log(responsible) * reward)
    weights = tf1.trainable_variables()
    holders = [tf1.placeholder(tf.float32, name=f"{i}_holder") for i, _ in enumerate(weights)]
    gradients = tf1.gradients(loss, weights)
    update = tf1.train.AdamOptimizer(0.01).apply_gradients(zip(holders, weights, strict=True))
    with tf1.Session(config=one_thread()) as sess:
        sess.run(tf1.global_variables_initializer())
        buffer = [np.zeros_like(w) for w in sess.run(weights)]
        with watch.session(sess, predictions=output):
            for episode in range(4):
                states = rng.normal(size=(5, 4))
                for one in states:
                    sess.run(output, feed_dict={state: [one]})
                feed = {state: states, action: rng.integers(0, 2, 5), reward: rng.normal(size=5)}
                for i, gradient in enumerate(sess.run(gradients, feed_dict=feed)):
                    buffer[i] += gradient
                if episode % 2:
                    sess.run(update, feed_dict=dict(zip(holders, buffer, strict=True)))
                    buffer = [0 * b for b in buffer]
        return variables(sess)


@program(
    *TRAINING,
    "activations/main/hidden",
    "weight_gradients/main/out/w",
    "weights/target/out/w",
    epochs=(0,) * 4,
)
def deep_q_network(watch: Watch) -> Any:
    """A target network that is copied every second step, actions as one-hot vectors, a Huber loss."""
    tf1.set_random_seed(18)
    rng = np.random.default_rng(0)
    state = tf1.placeholder(tf.float32, [None, 4], name="state")
    following = tf1.placeholder(tf.float32, [None, 4], name="following")
    wanted = tf1.placeholder(tf.float32, [None], name="wanted")
    action = tf1.placeholder(tf.int32, [None], name="action")

    def network(x: Any, name: str) -> Any:
        with tf1.variable_scope(name):
            with tf1.variable_scope("hidden"):
                h = tf.nn.relu(tf.matmul(x, tf1.get_variable("w", [4, 8])) + tf1.get_variable("b", [8]))
            with tf1.variable_scope("out"):
                return tf.matmul(h, tf1.get_variable("w", [8, 2]))

    q, next_q = network(state, "main"), network(following, "target")
    chosen = tf.reduce_sum(q * tf.one_hot(action, 2), 1)
    error = wanted - chosen
    loss = tf.reduce_mean(tf1.where(tf.abs(error) < 1.0, 0.5 * tf.square(error), tf.abs(error) - 0.5))
    main, target = tf1.trainable_variables("main"), tf1.trainable_variables("target")
    train = tf1.train.RMSPropOptimizer(0.01).minimize(loss, var_list=main)
    copy = [t.assign(m) for t, m in zip(target, main, strict=True)]
    with tf1.Session(config=one_thread()) as sess:
        sess.run(tf1.global_variables_initializer())
        sess.run(copy)
        with watch.session(sess):
            for i in range(4):
                sess.run(q, feed_dict={state: rng.normal(size=(1, 4))})
                best = sess.run(next_q, feed_dict={following: rng.normal(size=(8, 4))}).max(1)
                feed = {state: rng.normal(size=(8, 4)), action: rng.integers(0, 2, 8), wanted: best + 0.1}
                sess.run([train, loss], feed_dict=feed)
                if i % 2:
                    sess.run(copy)
        return variables(sess)
