"""What everybody began with: regression, softmax, convolutions, an autoencoder, summaries, several tasks at once."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import tensorflow as tf

from . import TRAINING, VALIDATION, Watch, images, one_thread, program, tf1, variables


@program(*TRAINING, *VALIDATION, "weights/weight", "updates/bias")
def linear_regression(watch: Watch) -> Any:
    """One sample at a time through placeholders of unknown shape; the cost of the whole set now and then."""
    rng = np.random.default_rng(0)
    train_x = rng.random(17).astype("float32")
    train_y = 2 * train_x + 0.5
    x, y = tf1.placeholder("float"), tf1.placeholder("float")
    w = tf1.Variable(0.3, name="weight")
    b = tf1.Variable(-0.2, name="bias")
    pred = tf.add(tf.multiply(x, w), b)
    cost = tf.reduce_sum(tf.pow(pred - y, 2)) / (2 * len(train_x))
    optimizer = tf1.train.GradientDescentOptimizer(0.05).minimize(cost)
    with tf1.Session(config=one_thread()) as sess:
        sess.run(tf1.global_variables_initializer())
        with watch.session(sess):
            for _ in range(2):
                for one_x, one_y in zip(train_x, train_y, strict=True):
                    sess.run(optimizer, feed_dict={x: one_x, y: one_y})
                sess.run(cost, feed_dict={x: train_x, y: train_y})
        return variables(sess)


@program(*TRAINING, *VALIDATION, "activations/Softmax", "weight_gradients/Variable")
def softmax_regression(watch: Watch) -> Any:
    """The first page of the tutorial: an interactive session, `run()` on operations, `eval()` on tensors."""
    data, labels = images(96)
    x = tf1.placeholder(tf.float32, shape=[None, 64])
    y_ = tf1.placeholder(tf.float32, shape=[None, 4])
    w = tf1.Variable(tf.zeros([64, 4]))
    b = tf1.Variable(tf.zeros([4]))
    sess = tf1.InteractiveSession(config=one_thread())
    try:
        sess.run(tf1.global_variables_initializer())
        y = tf.nn.softmax(tf.matmul(x, w) + b)
        cross_entropy = tf.reduce_mean(-tf.reduce_sum(y_ * tf.math.log(y), axis=[1]))
        train_step = tf1.train.GradientDescentOptimizer(0.5).minimize(cross_entropy)
        correct = tf.equal(tf.argmax(y, 1), tf.argmax(y_, 1))
        accuracy = tf.reduce_mean(tf.cast(correct, tf.float32))
        with watch.session(sess):
            for i in range(0, 64, 16):
                train_step.run(feed_dict={x: data[i : i + 16], y_: labels[i : i + 16]})
            accuracy.eval(feed_dict={x: data[64:], y_: labels[64:]})
        return variables(sess)
    finally:
        sess.close()


@program(
    *TRAINING,
    *VALIDATION,
    "activations/fc1",
    "gradients/fc1",
    "activations/conv1",
    epochs=(0,) * 8,
    identity="not provable",
)
def deep_convolutions(watch: Watch) -> Any:
    """Convolutions with a dropout placeholder; every second step prints the accuracy of the batch that comes next."""
    tf1.set_random_seed(1)
    data, labels = images(160)

    def weight(shape: list[int]) -> Any:
        return tf1.Variable(tf1.truncated_normal(shape, stddev=0.1))

    def bias(shape: list[int]) -> Any:
        return tf1.Variable(tf.constant(0.1, shape=shape))

    x = tf1.placeholder(tf.float32, [None, 64], name="x")
    y_ = tf1.placeholder(tf.float32, [None, 4], name="y_")
    keep = tf1.placeholder(tf.float32, name="keep_prob")
    with tf1.name_scope("reshape"):
        image = tf.reshape(x, [-1, 8, 8, 1])
    with tf1.name_scope("conv1"):
        h = tf.nn.relu(tf1.nn.conv2d(image, weight([3, 3, 1, 4]), [1, 1, 1, 1], "SAME") + bias([4]))
    with tf1.name_scope("pool1"):
        h = tf1.nn.max_pool(h, [1, 2, 2, 1], [1, 2, 2, 1], "SAME")
    with tf1.name_scope("fc1"):
        h = tf.nn.relu(tf.matmul(tf.reshape(h, [-1, 64]), weight([64, 12])) + bias([12]))
    with tf1.name_scope("dropout"):
        h = tf1.nn.dropout(h, keep_prob=keep)
    with tf1.name_scope("fc2"):
        y = tf.matmul(h, weight([12, 4])) + bias([4])
    with tf1.name_scope("loss"):
        loss = tf.reduce_mean(tf1.nn.softmax_cross_entropy_with_logits(labels=y_, logits=y))
    with tf1.name_scope("adam_optimizer"):
        train_step = tf1.train.AdamOptimizer(1e-3).minimize(loss)
    with tf1.name_scope("accuracy"):
        right = tf.equal(tf.argmax(y, 1), tf.argmax(y_, 1))
        accuracy = tf.reduce_mean(tf.cast(right, tf.float32))
    with tf1.Session(config=one_thread()) as sess:
        sess.run(tf1.global_variables_initializer())
        with watch.session(sess):
            for i in range(8):
                rows = slice(16 * i, 16 * i + 16)
                if i % 2 == 0:
                    accuracy.eval(feed_dict={x: data[rows], y_: labels[rows], keep: 1.0})
                train_step.run(feed_dict={x: data[rows], y_: labels[rows], keep: 0.5})
            accuracy.eval(feed_dict={x: data[128:], y_: labels[128:], keep: 1.0})
        return variables(sess)


@program(*TRAINING, *VALIDATION, "activations/Sigmoid", "activations/Sigmoid_3")
def autoencoder(watch: Watch) -> Any:
    """The labels are the inputs."""
    tf1.set_random_seed(2)
    data, _ = images(64)
    x = tf1.placeholder("float", [None, 64])
    sizes = {"encoder_h1": (64, 16), "encoder_h2": (16, 4), "decoder_h1": (4, 16), "decoder_h2": (16, 64)}
    weights = {name: tf1.Variable(tf1.random_normal(size)) for name, size in sizes.items()}
    biases = {name: tf1.Variable(tf1.random_normal([size[1]])) for name, size in sizes.items()}
    h = x
    for name in sizes:
        h = tf.nn.sigmoid(tf.add(tf.matmul(h, weights[name]), biases[name]))
    loss = tf.reduce_mean(tf.pow(x - h, 2))
    optimizer = tf1.train.RMSPropOptimizer(0.01).minimize(loss)
    with tf1.Session(config=one_thread()) as sess:
        sess.run(tf1.global_variables_initializer())
        with watch.session(sess):
            for i in range(3):
                sess.run([optimizer, loss], feed_dict={x: data[16 * i : 16 * i + 16]})
            sess.run(loss, feed_dict={x: data[48:]})
        return variables(sess)


@program(
    *TRAINING,
    *VALIDATION,
    "activations/layer1",
    "activations/layer2",
    "weights/layer1/weights/Variable",
    identity="not provable",
)
def summaries_and_decay(watch: Watch) -> Any:
    """A rate that decays with the global step, summaries merged and written, dropout, a test every third step."""
    tf1.set_random_seed(3)
    data, labels = images(96)
    test_x, test_y = images(32, seed=9)
    with tf1.name_scope("input"):
        x = tf1.placeholder(tf.float32, [None, 64], name="x-input")
        y_ = tf1.placeholder(tf.int64, [None], name="y-input")

    def layer(given: Any, n_in: int, n_out: int, name: str, act: Any = tf.nn.relu) -> Any:
        with tf1.name_scope(name):
            with tf1.name_scope("weights"):
                w = tf1.Variable(tf1.truncated_normal([n_in, n_out], stddev=0.1))
                tf1.summary.scalar("mean", tf.reduce_mean(w))
            with tf1.name_scope("biases"):
                b = tf1.Variable(tf.constant(0.1, shape=[n_out]))
            with tf1.name_scope("Wx_plus_b"):
                before = tf.matmul(given, w) + b
                tf1.summary.histogram("pre_activations", before)
            after = act(before, name="activation")
            tf1.summary.histogram("activations", after)
            return after

    hidden = layer(x, 64, 12, "layer1")
    with tf1.name_scope("dropout"):
        keep = tf1.placeholder(tf.float32)
        dropped = tf1.nn.dropout(hidden, rate=1 - keep)
    y = layer(dropped, 12, 4, "layer2", act=tf.identity)
    with tf1.name_scope("cross_entropy"):
        loss = tf1.losses.sparse_softmax_cross_entropy(labels=y_, logits=y)
    tf1.summary.scalar("cross_entropy", loss)
    step = tf1.train.get_or_create_global_step()
    rate = tf1.train.exponential_decay(0.01, step, 4, 0.9, staircase=True)
    with tf1.name_scope("train"):
        train = tf1.train.AdamOptimizer(rate).minimize(loss, global_step=step)
    with tf1.name_scope("accuracy"):
        right = tf.equal(tf.argmax(y, 1), y_)
        accuracy = tf.reduce_mean(tf.cast(right, tf.float32))
    tf1.summary.scalar("accuracy", accuracy)
    merged = tf1.summary.merge_all()
    with tf1.Session(config=one_thread()) as sess, tempfile.TemporaryDirectory() as folder:
        writer = tf1.summary.FileWriter(folder, sess.graph)
        sess.run(tf1.global_variables_initializer())
        with watch.session(sess):
            for i in range(6):
                if i % 3 == 0:
                    summary, _ = sess.run([merged, accuracy], {x: test_x, y_: test_y.argmax(1), keep: 1.0})
                else:
                    rows = slice(16 * i, 16 * i + 16)
                    feed = {x: data[rows], y_: labels[rows].argmax(1), keep: 0.9}
                    summary, _ = sess.run([merged, train], feed)
                writer.add_summary(summary, i)
        writer.close()
        return variables(sess)


@program(
    "loss", "inputs", "predictions/heads/classes/add", "predictions/heads/value/add", "targets/kind", "targets/amount",
    "validation/predictions/heads/classes/add", "validation/targets/amount", "validation/loss", "weight_gradients/trunk/w",
)  # fmt: skip
def several_tasks(watch: Watch) -> Any:
    """A trunk with two heads, a weighted sum of losses and of weight decay, gradients clipped by their global norm."""
    tf1.set_random_seed(4)
    rng = np.random.default_rng(0)
    x = tf1.placeholder(tf.float32, [None, 6], name="x")
    kind = tf1.placeholder(tf.int32, [None], name="kind")
    amount = tf1.placeholder(tf.float32, [None, 1], name="amount")

    def dense(given: Any, n: int, name: str) -> Any:
        with tf1.variable_scope(name):
            w = tf1.get_variable("w", [given.shape[-1], n])
            tf1.add_to_collection("decay", tf.nn.l2_loss(w))
            return tf.matmul(given, w) + tf1.get_variable("b", [n], initializer=tf1.zeros_initializer())

    trunk = tf.nn.relu(dense(x, 8, "trunk"), name="trunk/relu")
    with tf1.variable_scope("heads"):
        classes, value = dense(trunk, 3, "classes"), dense(trunk, 1, "value")
    first = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=kind, logits=classes))
    second = tf.reduce_mean(tf.square(value - amount))
    loss = first + 0.5 * second + 1e-4 * tf.add_n(tf1.get_collection("decay"))
    optimizer = tf1.train.MomentumOptimizer(0.05, 0.9)
    gradients, names = zip(*optimizer.compute_gradients(loss), strict=True)
    clipped, norm = tf.clip_by_global_norm(gradients, 1.0)
    train = optimizer.apply_gradients(zip(clipped, names, strict=True))
    feeds = [
        {x: rng.normal(size=(8, 6)), kind: rng.integers(0, 3, 8), amount: rng.normal(size=(8, 1))}
        for _ in range(5)
    ]
    with tf1.Session(config=one_thread()) as sess:
        sess.run(tf1.global_variables_initializer())
        with watch.session(sess):
            for feed in feeds[:4]:
                sess.run([train, loss, norm], feed)
            sess.run([first, second, loss], feeds[4])
        return variables(sess)
