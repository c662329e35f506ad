"""Translation: an encoder and a decoder as models of their own, masks through own layers, tf.data with dict inputs."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers, ops

from programs import data
from programs.program import Trained

WIDTH, LENGTH, WORDS = 8, 10, 20


class Encoder(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.attention = layers.MultiHeadAttention(2, WIDTH)
        self.project = keras.Sequential([layers.Dense(16, activation="relu"), layers.Dense(WIDTH)])
        self.norm_1, self.norm_2 = layers.LayerNormalization(), layers.LayerNormalization()
        self.supports_masking = True

    def call(self, inputs, mask=None):
        padding = None if mask is None else ops.cast(mask[:, None, :], "int32")
        attended = self.attention(query=inputs, value=inputs, key=inputs, attention_mask=padding)
        x = self.norm_1(inputs + attended)
        return self.norm_2(x + self.project(x))


class Places(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.tokens = layers.Embedding(WORDS, WIDTH)
        self.places = layers.Embedding(LENGTH, WIDTH)

    def call(self, inputs):
        return self.tokens(inputs) + self.places(ops.arange(0, ops.shape(inputs)[-1], 1))

    def compute_mask(self, *args, **kwargs):
        return ops.not_equal(args[0], 0)


class Decoder(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.attention_1 = layers.MultiHeadAttention(2, WIDTH)
        self.attention_2 = layers.MultiHeadAttention(2, WIDTH)
        self.project = keras.Sequential([layers.Dense(16, activation="relu"), layers.Dense(WIDTH)])
        self.norm_1, self.norm_2, self.norm_3 = (layers.LayerNormalization() for _ in range(3))
        self.supports_masking = True

    def call(self, inputs, mask=None):
        inputs, encoded = inputs
        causal = self.causal(inputs)
        of_inputs, of_encoded = (None, None) if mask is None else mask
        x = self.attention_1(
            query=inputs, value=inputs, key=inputs, attention_mask=causal, query_mask=of_inputs
        )
        x1 = self.norm_1(inputs + x)
        x = self.attention_2(query=x1, value=encoded, key=encoded, query_mask=of_inputs, key_mask=of_encoded)
        x2 = self.norm_2(x1 + x)
        return self.norm_3(x2 + self.project(x2))

    def causal(self, inputs):
        n, length = ops.shape(inputs)[0], ops.shape(inputs)[1]
        rows, columns = ops.arange(length)[:, None], ops.arange(length)
        return ops.tile(ops.reshape(ops.cast(rows >= columns, "int32"), (1, length, length)), (n, 1, 1))


def train(scope, callbacks):
    source, _ = data.sentences(length=LENGTH)
    target = source[:, ::-1]
    inputs = {"encoder_inputs": source, "decoder_inputs": target[:, :-1]}
    batches = tf.data.Dataset.from_tensor_slices((inputs, target[:, 1:]))
    batches = batches.batch(12).shuffle(4, seed=1).prefetch(2).cache()

    encoder_inputs = keras.Input((None,), dtype="int64", name="encoder_inputs")
    encoder = keras.Model(encoder_inputs, Encoder()(Places()(encoder_inputs)), name="encoder")
    decoder_inputs = keras.Input((None,), dtype="int64", name="decoder_inputs")
    encoded = keras.Input((None, WIDTH), name="decoder_state_inputs")
    x = layers.Dropout(0.5)(Decoder()([Places()(decoder_inputs), encoded]))
    decoder = keras.Model(
        [decoder_inputs, encoded], layers.Dense(WORDS, activation="softmax")(x), name="decoder"
    )
    model = keras.Model(
        {"encoder_inputs": encoder_inputs, "decoder_inputs": decoder_inputs},
        decoder([decoder_inputs, encoder(encoder_inputs)]),
        name="transformer",
    )
    model.compile("rmsprop", keras.losses.SparseCategoricalCrossentropy(ignore_class=0), metrics=["accuracy"])
    history = model.fit(batches, epochs=2, validation_data=batches.take(1), verbose=0, callbacks=callbacks)
    return Trained(model, history.history)
