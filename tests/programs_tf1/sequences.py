"""Recurrent networks: cells in a loop and unrolled, and a loop that reads one sequence and writes another."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tf_keras.src.layers.rnn import legacy_cells as rnn_cell

from . import TRAINING, VALIDATION, Watch, images, one_thread, program, tf1, variables


def _classify(watch: Watch, outputs: Any, x: Any, seed: int, optimizer: Any) -> Any:
    """What such programs do with the last output of a recurrent network."""
    data, labels = images(64, seed=seed)
    rows = data.reshape(-1, 8, 8)
    y = tf1.placeholder("float", [None, 4], name="y")
    weights = {"out": tf1.Variable(tf1.random_normal([6, 4]), name="out_w")}
    biases = {"out": tf1.Variable(tf1.random_normal([4]), name="out_b")}
    pred = tf.matmul(outputs, weights["out"]) + biases["out"]
    cost = tf.reduce_mean(tf1.nn.softmax_cross_entropy_with_logits(logits=pred, labels=y))
    train = optimizer.minimize(cost)
    accuracy = tf.reduce_mean(
        tf.cast(tf.equal(tf.argmax(tf.nn.softmax(pred), 1), tf.argmax(y, 1)), tf.float32)
    )
    with tf1.Session(config=one_thread()) as sess:
        sess.run(tf1.global_variables_initializer())
        with watch.session(sess):
            for i in range(3):
                batch = {x: rows[16 * i : 16 * i + 16], y: labels[16 * i : 16 * i + 16]}
                sess.run(train, feed_dict=batch)
                sess.run([cost, accuracy], feed_dict=batch)
            sess.run(accuracy, feed_dict={x: rows[48:], y: labels[48:]})
        return variables(sess)


@program(
    *TRAINING, *VALIDATION, "activations/rnn", "weight_gradients/rnn/basic_lstm_cell/kernel", epochs=(0, 0, 0)
)
def lstm_in_a_loop(watch: Watch) -> Any:
    tf1.set_random_seed(14)
    x = tf1.placeholder("float", [None, 8, 8], name="x")
    cell = rnn_cell.BasicLSTMCell(6, forget_bias=1.0)
    outputs, _ = tf1.nn.dynamic_rnn(cell, x, dtype=tf.float32)
    return _classify(watch, tf.transpose(outputs, [1, 0, 2])[-1], x, 14, tf1.train.AdamOptimizer(0.01))


@program(
    *TRAINING,
    *VALIDATION,
    "weight_gradients/rnn/basic_lstm_cell/kernel",
    "weight_gradients/rnn/basic_lstm_cell/bias",
    epochs=(0, 0, 0),
)
def lstm_unrolled(watch: Watch) -> Any:
    tf1.set_random_seed(15)
    x = tf1.placeholder("float", [None, 8, 8], name="x")
    steps = tf.unstack(tf.tile(x, [1, 4, 1]), 32, 1)
    outputs, _ = tf1.nn.static_rnn(rnn_cell.BasicLSTMCell(6), steps, dtype=tf.float32)
    return _classify(watch, outputs[-1], x, 15, tf1.train.GradientDescentOptimizer(0.1))


@program(
    "loss", "predictions", "targets", "validation/predictions", "activations/encoder/cell_4", "weight_gradients/embedding/table",
    "weight_gradients/decoder/cell/w", "weights/decoder/cell/w",
)  # fmt: skip
def translation(watch: Watch) -> Any:
    """An encoder, a decoder that is shown the right words, a loss with a mask, gradients clipped by their global norm."""
    tf1.set_random_seed(16)
    rng = np.random.default_rng(0)
    words, width, length = 12, 6, 5
    source = tf1.placeholder(tf.int32, [None, length], name="source")
    target_in = tf1.placeholder(tf.int32, [None, length], name="target_in")
    target_out = tf1.placeholder(tf.int32, [None, length], name="target_out")
    lengths = tf1.placeholder(tf.int32, [None], name="lengths")
    with tf1.variable_scope("embedding"):
        table = tf1.get_variable("table", [words, width])
        given, shown = (tf.nn.embedding_lookup(table, ids) for ids in (source, target_in))

    def unroll(inputs: Any, state: Any, name: str) -> tuple[Any, Any]:
        outputs = []
        with tf1.variable_scope(name):
            for t in range(length):
                with tf1.variable_scope("cell", reuse=t > 0):
                    w, b = tf1.get_variable("w", [2 * width, width]), tf1.get_variable("b", [width])
                    state = tf.tanh(tf.matmul(tf.concat([inputs[:, t], state], 1), w) + b)
                outputs.append(state)
            return tf.stack(outputs, 1, name="outputs"), state

    _, thought = unroll(given, tf.zeros([tf.shape(source)[0], width]), "encoder")
    decoded, _ = unroll(shown, thought, "decoder")
    with tf1.variable_scope("projection"):
        logits = tf.tensordot(decoded, tf1.get_variable("w", [width, words]), 1)
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=target_out, logits=logits)
    mask = tf.sequence_mask(lengths, length, dtype=tf.float32)
    loss = tf.reduce_sum(each * mask) / tf.reduce_sum(mask)
    optimizer = tf1.train.AdamOptimizer(0.01)
    pairs = optimizer.compute_gradients(loss)
    clipped, _ = tf.clip_by_global_norm([g for g, _ in pairs], 1.0)
    train = optimizer.apply_gradients(zip(clipped, [v for _, v in pairs], strict=True))

    def batch() -> dict[Any, Any]:
        ids = rng.integers(1, words, (8, length))
        shifted = np.concatenate([np.zeros((8, 1), int), ids[:, :-1]], 1)
        return {
            source: ids[:, ::-1],
            target_in: shifted,
            target_out: ids,
            lengths: rng.integers(2, length + 1, 8),
        }

    with tf1.Session(config=one_thread()) as sess:
        sess.run(tf1.global_variables_initializer())
        with watch.session(sess):
            for _ in range(3):
                sess.run([train, loss], batch())
            sess.run(loss, batch())
        return variables(sess)
