"""Where the data comes from: pipelines with a switch, queues, monitored sessions; and what is updated beside the weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from . import TRAINING, VALIDATION, Watch, images, one_thread, program, tf1, variables


def _dense(x: Any, n: int, name: str) -> Any:
    with tf1.variable_scope(name):
        w = tf1.get_variable("w", [x.shape[-1], n], initializer=tf1.random_normal_initializer(stddev=0.1))
        return tf.nn.bias_add(
            tf.matmul(x, w), tf1.get_variable("b", [n], initializer=tf1.zeros_initializer())
        )


def _network(x: Any, y: Any) -> tuple[Any, Any, Any]:
    logits = _dense(tf.nn.relu(_dense(x, 10, "hidden"), name="hidden/relu"), 4, "logits")
    loss = tf1.losses.softmax_cross_entropy(onehot_labels=y, logits=logits)
    right = tf.equal(tf.argmax(tf.nn.softmax(logits), 1), tf.argmax(y, 1))
    return logits, loss, tf.reduce_mean(tf.cast(right, tf.float32), name="accuracy")


@program(*TRAINING, *VALIDATION, "activations/hidden", epochs=(0, 0, 0, 1, 1, 1), identity="not provable")
def feedable_iterator(watch: Watch) -> Any:
    """A handle chooses between training and validation data; the validation is an accuracy."""
    tf1.set_random_seed(5)
    train_data, test_data = (
        tf.data.Dataset.from_tensor_slices(images(n, seed=n)).batch(16) for n in (48, 32)
    )
    handle = tf1.placeholder(tf.string, shape=[])
    train_data = train_data.repeat()
    both = tf1.data.Iterator.from_string_handle(
        handle, tf1.data.get_output_types(train_data), tf1.data.get_output_shapes(train_data)
    )
    x, y = both.get_next()
    _, loss, accuracy = _network(x, y)
    train = tf1.train.AdamOptimizer(0.01).minimize(loss)
    training, testing = (
        tf1.data.make_one_shot_iterator(train_data),
        tf1.data.make_initializable_iterator(test_data),
    )
    with tf1.Session(config=one_thread()) as sess:
        sess.run(tf1.global_variables_initializer())
        train_handle, test_handle = sess.run([training.string_handle(), testing.string_handle()])
        with watch.session(sess):
            for _ in range(2):
                for _ in range(3):
                    sess.run([train, loss], feed_dict={handle: train_handle})
                sess.run(testing.initializer)
                for _ in range(2):
                    sess.run(accuracy, feed_dict={handle: test_handle})
        return variables(sess)


@program(*TRAINING, *VALIDATION, "activations/hidden", epochs=(0, 0, 0, 1, 1, 1), identity="not provable")
def reinitializable_iterator(watch: Watch) -> Any:
    """One iterator that is given other data for each pass, until it is used up."""
    tf1.set_random_seed(6)
    train_data, test_data = (
        tf.data.Dataset.from_tensor_slices(images(n, seed=n)).batch(16) for n in (48, 32)
    )
    iterator = tf1.data.Iterator.from_structure(
        tf1.data.get_output_types(train_data), tf1.data.get_output_shapes(train_data)
    )
    _, loss, accuracy = _network(*iterator.get_next())
    train = tf1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    to_train, to_test = iterator.make_initializer(train_data), iterator.make_initializer(test_data)
    with tf1.Session(config=one_thread()) as sess:
        sess.run(tf1.global_variables_initializer())
        with watch.session(sess):
            for _ in range(2):
                for begin, fetches in ((to_train, [train, loss]), (to_test, [loss, accuracy])):
                    sess.run(begin)
                    while True:
                        try:
                            sess.run(fetches)
                        except tf.errors.OutOfRangeError:
                            break
        return variables(sess)


@program(*TRAINING, *VALIDATION, "activations/hidden", "weights/hidden/w", epochs=(0, 0, 0, 0, 1, 1))
def monitored_session(watch: Watch) -> Any:
    """Hooks stop it, log and look for NaN; the program asks for an accuracy in between."""
    tf1.set_random_seed(7)
    data, labels = images(96)
    test = images(16, seed=3)
    x = tf1.placeholder(tf.float32, [None, 64], name="x")
    y = tf1.placeholder(tf.float32, [None, 4], name="y")
    _, loss, accuracy = _network(x, y)
    step = tf1.train.get_or_create_global_step()
    train = tf1.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)
    kept: list[Any] = []

    class Keep(tf1.train.SessionRunHook):
        def end(self, session: Any) -> None:
            kept.extend(variables(session))

    hooks = [
        tf1.train.StopAtStepHook(last_step=6), tf1.train.NanTensorHook(loss), Keep(),
        tf1.train.LoggingTensorHook({"loss": loss}, every_n_iter=100), *watch.hooks(),
    ]  # fmt: skip
    with tf1.train.MonitoredTrainingSession(hooks=hooks, config=one_thread()) as sess:
        i = 0
        while not sess.should_stop():
            rows = slice(16 * i, 16 * i + 16)
            sess.run(train, {x: data[rows], y: labels[rows]})
            if i == 3:
                sess.run(accuracy, {x: test[0], y: test[1]})
            i += 1
    return kept


@program(*TRAINING, "activations/hidden", epochs=(0,) * 6, identity="not provable")
def queue_of_batches(watch: Watch) -> Any:
    """Before tf.data: a queue that threads fill, until the coordinator says that it is enough."""
    tf1.set_random_seed(8)
    rows = images(16)
    queue = tf1.FIFOQueue(64, [tf.float32, tf.float32], shapes=[[64], [4]])
    fill = queue.enqueue_many([tf.constant(part) for part in rows])
    tf1.train.add_queue_runner(tf1.train.QueueRunner(queue, [fill]))
    x, y = queue.dequeue_many(16)
    _, loss, _ = _network(x, y)
    train = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf1.Session(config=one_thread()) as sess:
        sess.run(tf1.global_variables_initializer())
        coordinator = tf1.train.Coordinator()
        with watch.session(sess):
            threads = tf1.train.start_queue_runners(sess=sess, coord=coordinator)
            for _ in range(6):
                sess.run([train, loss])
            coordinator.request_stop()
            sess.run(queue.close(cancel_pending_enqueues=True))
            coordinator.join(threads, stop_grace_period_secs=5)
        return variables(sess)


@program(
    *TRAINING, *VALIDATION, "activations/norm", "weights/norm/moving_mean", "weight_gradients/norm/gamma"
)
def batch_norm(watch: Watch) -> Any:
    """Moving averages in UPDATE_OPS, which the train op depends on; a placeholder says which statistics are used."""
    tf1.set_random_seed(9)
    data, labels = images(80)
    x = tf1.placeholder(tf.float32, [None, 64], name="x")
    y = tf1.placeholder(tf.float32, [None, 4], name="y")
    training = tf1.placeholder(tf.bool, [], name="training")
    hidden = _dense(x, 10, "hidden")
    with tf1.variable_scope("norm"):
        gamma, beta = (
            tf1.get_variable(n, [10], initializer=i)
            for n, i in (("gamma", tf1.ones_initializer()), ("beta", tf1.zeros_initializer()))
        )
        moving = [
            tf1.get_variable(n, [10], initializer=i, trainable=False)
            for n, i in (
                ("moving_mean", tf1.zeros_initializer()),
                ("moving_variance", tf1.ones_initializer()),
            )
        ]
        batch = tf.nn.moments(hidden, [0])
        for kept, now in zip(moving, batch, strict=True):
            tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, tf1.assign_sub(kept, 0.1 * (kept - now)))
        mean, variance = tf.cond(
            training, lambda: tuple(batch), lambda: tuple(tf.identity(kept) for kept in moving)
        )
        normed = tf.nn.batch_normalization(hidden, mean, variance, beta, gamma, 1e-3)
    logits = _dense(tf.nn.relu(normed), 4, "logits")
    loss = tf.reduce_mean(tf1.nn.softmax_cross_entropy_with_logits_v2(labels=y, logits=logits))
    with tf.control_dependencies(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)):
        train = tf1.train.AdamOptimizer(0.01).minimize(loss)
    accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), tf.argmax(y, 1)), tf.float32))
    with tf1.Session(config=one_thread()) as sess:
        sess.run(tf1.global_variables_initializer())
        with watch.session(sess):
            for i in range(4):
                rows = slice(16 * i, 16 * i + 16)
                sess.run([train, loss], {x: data[rows], y: labels[rows], training: True})
            sess.run(accuracy, {x: data[64:], y: labels[64:], training: False})
        return variables(sess)


@program(
    "loss",
    "inputs",
    "activations/table",
    "weight_gradients/table/embeddings",
    "weights/nce/weights",
    "targets",
    "predictions/nce_loss/add",
    "predictions/nce_loss/add_1",
    identity="not provable",
)
def word2vec(watch: Watch) -> Any:
    """Skip-grams with noise-contrastive estimation: one prediction for the right words, one for those that were drawn."""
    tf1.set_random_seed(10)
    rng = np.random.default_rng(0)
    words, width = 40, 6
    centre = tf1.placeholder(tf.int32, shape=[16], name="centre")
    context = tf1.placeholder(tf.int32, shape=[16, 1], name="context")
    with tf1.variable_scope("table"):
        embeddings = tf1.get_variable(
            "embeddings", [words, width], initializer=tf1.random_uniform_initializer(-1, 1)
        )
        embed = tf.nn.embedding_lookup(embeddings, centre)
    with tf1.variable_scope("nce"):
        weights = tf1.get_variable(
            "weights", [words, width], initializer=tf1.truncated_normal_initializer(stddev=0.4)
        )
        biases = tf1.get_variable("biases", [words], initializer=tf1.zeros_initializer())
    loss = tf.reduce_mean(
        tf.nn.nce_loss(
            weights=weights, biases=biases, labels=context, inputs=embed, num_sampled=8, num_classes=words
        )
    )
    optimizer = tf1.train.GradientDescentOptimizer(1.0).minimize(loss)
    norm = tf.sqrt(tf.reduce_sum(tf.square(embeddings), 1, keepdims=True))
    similarity = tf.matmul(embeddings / norm, embeddings / norm, transpose_b=True)
    with tf1.Session(config=one_thread()) as sess:
        sess.run(tf1.global_variables_initializer())
        with watch.session(sess):
            for _ in range(4):
                feed = {centre: rng.integers(0, words, 16), context: rng.integers(0, words, (16, 1))}
                sess.run([optimizer, loss], feed_dict=feed)
            similarity.eval()
        return variables(sess)
