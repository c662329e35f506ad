"""Exact values in models of sequences: masks, embeddings, recurrent layers, attention."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers

import fitscope as fs

from .small_models import RNG, compiled, floats, sites, with_passes


@pytest.fixture
def watch_fit(watch_fit, tmp_path):
    return with_passes(watch_fit, tmp_path)


def lstm(x, mask, kernel, recurrent, bias, units):
    """An LSTM in NumPy: a masked step changes nothing."""

    def sigmoid(v):
        return 1 / (1 + np.exp(-v))

    h = c = np.zeros((len(x), units))
    for t in range(x.shape[1]):
        i, f, g, o = np.split(x[:, t] @ kernel + h @ recurrent + bias, 4, axis=1)
        new_c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        new_h = sigmoid(o) * np.tanh(new_c)
        keep = mask[:, t, None]
        h, c = np.where(keep, new_h, h), np.where(keep, new_c, c)
    return h


def test_masks_embeddings_and_recurrent_layers_are_recorded(watch_fit, tools):
    def make():
        keras.utils.set_random_seed(0)
        i = layers.Input((6,), dtype="int32")
        h = layers.Embedding(7, 4, mask_zero=True, name="embed")(i)
        h = layers.LSTM(5, name="lstm")(h)
        return compiled(keras.Model(i, layers.Dense(2, name="head")(h)), optimizer="adam")

    tokens = RNG.integers(1, 7, (12, 6)).astype("int32")
    tokens[:, 4:] = 0
    tokens[::2, 3] = 0
    seen = watch_fit(make, tokens, floats(12, 2))
    at = seen.at
    # The cell runs in a loop: what it computes at one time step is no value of the step.
    assert sites(seen.run, "activations") == ["embed", "head", "lstm"]
    embedded = at("weights/embed/embeddings")[tokens[:8]]
    assert np.array_equal(at("activations/embed"), embedded)
    weights = [at(f"weights/lstm/lstm_cell/{name}") for name in ("kernel", "recurrent_kernel", "bias")]
    h = lstm(embedded.astype("float64"), tokens[:8] != 0, *weights, units=5)
    tools.close(at("activations/lstm"), h, rtol=1e-3)
    # The gradient of an embedding is sparse in TensorFlow; recorded is what it means.
    by_token = np.zeros((7, 4))
    np.add.at(by_token, tokens[:8], at("gradients/embed"))
    tools.close(at("weight_gradients/embed/embeddings"), by_token)


def test_gru_masking_bidirectional_and_time_distributed_layers_are_recorded(watch_fit, tools):
    def make():
        keras.utils.set_random_seed(0)
        i = layers.Input((4, 3))
        h = layers.Masking(name="masking")(i)
        h = layers.TimeDistributed(layers.Dense(3, name="each"), name="times")(h)
        h = layers.Bidirectional(layers.GRU(2, return_sequences=True, name="gru"), name="both")(h)
        h = layers.GRU(2, name="last")(h)
        return compiled(keras.Model(i, h), optimizer="adam")

    x = floats(10, 4, 3)
    x[:, 2] = 0
    seen = watch_fit(make, x, floats(10, 2))
    at = seen.at
    assert sites(seen.run, "activations") == [
        "both",
        "both/backward_gru",
        "both/forward_gru",
        "last",
        "masking",
        "times",
    ]
    tools.close(
        at("activations/times"), tools.dense(at, "times/each", x[:8] * (x[:8] != 0).any(2, keepdims=True))
    )
    forward, backward = at("activations/both/forward_gru"), at("activations/both/backward_gru")
    tools.close(at("activations/both"), np.concatenate([forward, backward[:, ::-1]], axis=2))
    assert not forward[:, 2].any()  # Bidirectional puts out zeros where the input is masked
    assert forward[:, 3].any()

    for inner in ("last/gru_cell", "each", "both/*/gru_cell"):
        with pytest.raises(fs.WatchError, match="once per time step"):
            make().fit(
                x,
                floats(10, 2),
                verbose=0,
                callbacks=[fs.Scope(seen.run.path + "-no", fs.activations(inner))],
            )


def test_attention_layers_are_recorded(watch_fit, tools):
    def make():
        keras.utils.set_random_seed(0)
        i = layers.Input((4, 6))
        h = layers.MultiHeadAttention(2, 3, name="attention")(i, i)
        h = layers.LayerNormalization(name="norm")(h)
        return compiled(keras.Model(i, layers.GlobalAveragePooling1D(name="pool")(h)), optimizer="adam")

    x = floats(10, 4, 6)
    seen = watch_fit(make, x, floats(10, 6))
    at = seen.at
    q, k, v = (
        np.einsum("abc,cde->abde", x[:8], at(f"weights/attention/{n}/kernel"))
        + at(f"weights/attention/{n}/bias")
        for n in ("query", "key", "value")
    )
    tools.close(at("activations/attention/query"), q)
    scores = np.einsum("aqhe,akhe->ahqk", q / np.sqrt(3), k)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = np.einsum("ahqk,akhe->aqhe", scores / scores.sum(-1, keepdims=True), v)
    out = np.einsum("aqhe,hec->aqc", mixed, at("weights/attention/attention_output/kernel"))
    tools.close(
        at("activations/attention"), out + at("weights/attention/attention_output/bias"), rtol=1e-3, atol=1e-5
    )
    assert np.array_equal(at("activations/attention"), at("activations/attention/attention_output"))
    tools.close(at("gradients/norm"), np.repeat(at("gradients/pool")[:, None] / 4, 4, axis=1))
