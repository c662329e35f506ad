"""Two optimizers in turn on parts of one graph, with and without a gradient penalty; and a variational autoencoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from . import Watch, images, one_thread, program, tf1, variables


def _dense(x: Any, n: int, name: str) -> Any:
    with tf1.variable_scope(name):
        w = tf1.get_variable("w", [x.shape[-1], n], initializer=tf1.random_normal_initializer(stddev=0.1))
        return tf.matmul(x, w) + tf1.get_variable("b", [n], initializer=tf1.zeros_initializer())


def _discriminator(image: Any, reuse: bool = False) -> Any:
    with tf1.variable_scope("discriminator", reuse=reuse):
        with tf1.variable_scope("h0_conv"):
            kernel = tf1.get_variable(
                "w", [3, 3, 1, 4], initializer=tf1.truncated_normal_initializer(stddev=0.1)
            )
            h0 = tf.nn.leaky_relu(tf1.nn.conv2d(image, kernel, [1, 2, 2, 1], "SAME"))
        return _dense(tf.reshape(h0, [-1, 64]), 1, "h1_lin")


def _generator(z: Any) -> Any:
    with tf1.variable_scope("generator"):
        h0 = tf.nn.relu(_dense(z, 16, "h0_lin"))
        return tf.nn.tanh(tf.reshape(_dense(h0, 64, "h1_lin"), [-1, 8, 8, 1]))


@program(
    "loss/d_loss", "loss/g_loss", "inputs/z", "inputs/real", "activations/discriminator/h0_conv", "activations/discriminator_1/h0_conv",
    "activations/generator/h0_lin", "weight_gradients/generator/h0_lin/w", "weight_gradients/discriminator/h1_lin/w",
    unseen=("predictions", "targets"),
)  # fmt: skip
def dcgan(watch: Watch) -> Any:
    """The generator is trained twice for each step of the discriminator, and losses are printed on the same noise."""
    tf1.set_random_seed(11)
    rng = np.random.default_rng(0)
    real = tf1.placeholder(tf.float32, [16, 8, 8, 1], name="real")
    z = tf1.placeholder(tf.float32, [None, 5], name="z")
    fake = _generator(z)
    on_real, on_fake = _discriminator(real), _discriminator(fake, reuse=True)
    entropy = tf.nn.sigmoid_cross_entropy_with_logits
    d_real = tf.reduce_mean(entropy(logits=on_real, labels=tf.ones_like(on_real)))
    d_fake = tf.reduce_mean(entropy(logits=on_fake, labels=tf.zeros_like(on_fake)))
    d_loss = tf.add(d_real, d_fake, name="d_loss")
    g_loss = tf.reduce_mean(entropy(logits=on_fake, labels=tf.ones_like(on_fake)), name="g_loss")
    d_vars = [v for v in tf1.trainable_variables() if "discriminator" in v.name]
    g_vars = [v for v in tf1.trainable_variables() if "generator" in v.name]
    d_optim = tf1.train.AdamOptimizer(2e-4, beta1=0.5).minimize(d_loss, var_list=d_vars)
    g_optim = tf1.train.AdamOptimizer(2e-4, beta1=0.5).minimize(g_loss, var_list=g_vars)
    with tf1.Session(config=one_thread()) as sess:
        sess.run(tf1.global_variables_initializer())
        with watch.session(sess):
            for i in range(3):
                pictures = images(16, seed=i)[0].reshape(16, 8, 8, 1)
                noise = rng.uniform(-1, 1, [16, 5]).astype("float32")
                sess.run([d_optim, d_loss], feed_dict={real: pictures, z: noise})
                sess.run(g_optim, feed_dict={z: noise})
                sess.run(g_optim, feed_dict={z: noise})
                d_fake.eval({z: noise})
                d_real.eval({real: pictures})
                g_loss.eval({z: noise})
        return variables(sess)


@program(
    "loss/critic_loss", "loss/generator_loss", "activations/discriminator_2/h0_conv", "weight_gradients/discriminator/h1_lin/w",
    unseen=("predictions", "targets"), identity="not provable")  # fmt: skip
def gradient_penalty(watch: Watch) -> Any:
    """The critic's loss has a gradient in it; its weights are clipped as well, which is no step."""
    tf1.set_random_seed(12)
    rng = np.random.default_rng(0)
    real = tf1.placeholder(tf.float32, [16, 8, 8, 1], name="real")
    z = tf1.placeholder(tf.float32, [16, 5], name="z")
    fake = _generator(z)
    on_real, on_fake = _discriminator(real), _discriminator(fake, reuse=True)
    mixed = real + tf1.random_uniform([16, 1, 1, 1]) * (fake - real)
    slopes = tf1.gradients(_discriminator(mixed, reuse=True), [mixed])[0]
    norms = tf.sqrt(tf.reduce_sum(tf.square(slopes), axis=[1, 2, 3]) + 1e-8)
    penalty = tf.reduce_mean((norms - 1.0) ** 2)
    critic_loss = tf.add(
        tf.reduce_mean(on_fake) - tf.reduce_mean(on_real), 10.0 * penalty, name="critic_loss"
    )
    generator_loss = tf.negative(tf.reduce_mean(on_fake), name="generator_loss")
    critic = tf1.trainable_variables("discriminator")
    optimizer = tf1.train.RMSPropOptimizer
    train_critic = optimizer(1e-3).minimize(critic_loss, var_list=critic)
    train_generator = optimizer(1e-3).minimize(generator_loss, var_list=tf1.trainable_variables("generator"))
    clip = [v.assign(tf.clip_by_value(v, -0.5, 0.5)) for v in critic]
    with tf1.Session(config=one_thread()) as sess:
        sess.run(tf1.global_variables_initializer())
        with watch.session(sess):
            for i in range(2):
                for j in range(2):
                    pictures = images(16, seed=i + j)[0].reshape(16, 8, 8, 1)
                    noise = rng.normal(size=[16, 5])
                    sess.run([train_critic, critic_loss], feed_dict={real: pictures, z: noise})
                    sess.run(clip)
                sess.run([train_generator, generator_loss], feed_dict={z: rng.normal(size=[16, 5])})
        return variables(sess)


@program(
    "loss",
    "inputs",
    "targets",
    "predictions",
    "validation/loss",
    "validation/predictions",
    "activations/encoder/mean",
    "weight_gradients/decoder/out/w",
    identity="not provable",
)
def variational_autoencoder(watch: Watch) -> Any:
    """A cross-entropy by hand with an epsilon, and a divergence; the code is drawn at random in the step."""
    tf1.set_random_seed(13)
    data, _ = images(64)
    x = tf1.placeholder(tf.float32, [None, 64], name="x")
    with tf1.variable_scope("encoder"):
        h = tf.nn.tanh(_dense(x, 12, "hidden"))
        mean, log_variance = _dense(h, 3, "mean"), _dense(h, 3, "log_variance")
    code = mean + tf.exp(log_variance / 2) * tf1.random_normal(tf.shape(mean), name="epsilon")
    with tf1.variable_scope("decoder"):
        out = tf.nn.sigmoid(_dense(tf.nn.tanh(_dense(code, 12, "hidden")), 64, "out"))
    likelihood = tf.reduce_sum(x * tf.math.log(1e-10 + out) + (1 - x) * tf.math.log(1e-10 + 1 - out), 1)
    divergence = -0.5 * tf.reduce_sum(1 + log_variance - tf.square(mean) - tf.exp(log_variance), 1)
    loss = tf.reduce_mean(divergence - likelihood)
    train = tf1.train.AdamOptimizer(1e-2).minimize(loss)
    with tf1.Session(config=one_thread()) as sess:
        sess.run(tf1.global_variables_initializer())
        with watch.session(sess):
            for i in range(3):
                sess.run([train, loss], {x: data[16 * i : 16 * i + 16]})
            sess.run(loss, {x: data[48:]})
        return variables(sess)
