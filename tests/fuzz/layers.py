"""Every public name of `keras.layers`: how to draw its arguments and which inputs it takes, or why no trained model can have it.

`LAYERS` has the layers that can be drawn, `LEFT_OUT` the others with the reason, `ALIASES` the second names of one class. A test compares
the three with the installed Keras.
"""

from __future__ import annotations

import math

from fuzz.families import (
    IN_TF,
    JAX_LAYER,
    OWN,
    RANGE,
    SMALL,
    adaptive_pool,
    attention,
    augmentation,
    bidirectional,
    category,
    cell,
    concatenate,
    conv,
    conv_lstm,
    dense,
    depthwise,
    dot,
    einsum,
    embedding,
    gated,
    global_pool,
    grouped_attention,
    merging,
    normalization,
    padded,
    permute,
    pool,
    reshape,
    same,
    separable,
    spectral,
    time_distributed,
    upright,
    upsampling,
)
from fuzz.kinds import ACTIVATIONS, ANY, IMAGES, R1, R2, R3, R4, R5, UNKNOWN, Kind

LAYERS: dict[str, Kind] = {
    # core
    "Dense": Kind(ANY, dense),
    "EinsumDense": Kind((*R1, *R2), einsum),
    "Embedding": Kind(((4,), (6,)), embedding, takes="int"),
    "ReversibleEmbedding": Kind(((4,), (6,)), lambda chance, shape: (
        {"input_dim": "8", "output_dim": "3"}, (*shape, 3)), takes="int"),
    "Identity": same(),
    "Lambda": Kind(ANY, lambda chance, shape: ({"function": chance.one_of("lambda x: 2.0 * x", "lambda x: keras.ops.tanh(x)")}, shape)),
    "Masking": same(*R2, mask_value=["0.0", "1.0"]),
    "Layer": Kind(ANY, lambda chance, shape: (
        {"units": "3", **chance.options(0.3, loss=["0.1"], noise=["0.1"], tap=["True"])}, (*shape[:-1], 3)), name="Scaled", prelude=OWN),
    "JaxLayer": Kind(R1, lambda chance, shape: ({"call_fn": "jax_call", "init_fn": "jax_init"}, (3,)), only=("jax",),
        why_only="it calls a function of JAX", prelude=JAX_LAYER),
    "TorchModuleWrapper": Kind(R1, lambda chance, shape: (
        {"module": f"torch.nn.Linear({shape[-1]}, 3)", "output_shape": "(None, 3)"}, (3,)),
        only=("torch",),
        why_only="it holds a module of torch"),
    # activations
    "Activation": Kind(ANY, lambda chance, shape: ({"activation": f"'{chance.member(ACTIVATIONS)}'"}, shape)),
    "ELU": same(alpha=["0.5", "1.0"]),
    "LeakyReLU": same(negative_slope=["0.1", "0.3"]),
    "PReLU": same(),
    "ReLU": same(max_value=["1.0", "6.0"], negative_slope=["0.1", "0.0"]),
    "Softmax": same(),
    # attention
    "AdditiveAttention": Kind(R2, lambda chance, shape: (chance.options(0.5, dropout=["0.2"]), shape), inputs=2, call="list"),
    "Attention": Kind(R2, lambda chance, shape: (chance.options(0.4, use_scale=["True"], dropout=["0.2"]), shape), inputs=2, call="list"),
    "MultiHeadAttention": Kind(R2, attention, inputs=2, call="args", calling=lambda chance: chance.options(0.2, use_causal_mask=["True"])),
    "GroupQueryAttention": Kind(R2, grouped_attention, inputs=2, call="args"),
    # convolution
    "Conv1D": conv(1), "Conv2D": conv(2), "Conv3D": conv(3),
    "Conv1DTranspose": conv(1, transpose=True), "Conv2DTranspose": conv(2, transpose=True), "Conv3DTranspose": conv(3, transpose=True),
    "DepthwiseConv1D": depthwise(1), "DepthwiseConv2D": depthwise(2),
    "SeparableConv1D": separable(1), "SeparableConv2D": separable(2),
    # pooling
    "AveragePooling1D": pool(1), "AveragePooling2D": pool(2), "AveragePooling3D": pool(3),
    "MaxPooling1D": pool(1), "MaxPooling2D": pool(2), "MaxPooling3D": pool(3),
    "GlobalAveragePooling1D": global_pool(1), "GlobalAveragePooling2D": global_pool(2), "GlobalAveragePooling3D": global_pool(3),
    "GlobalMaxPooling1D": global_pool(1), "GlobalMaxPooling2D": global_pool(2), "GlobalMaxPooling3D": global_pool(3),
    "AdaptiveAveragePooling1D": adaptive_pool(1), "AdaptiveAveragePooling2D": adaptive_pool(2),
    "AdaptiveAveragePooling3D": adaptive_pool(3),
    "AdaptiveMaxPooling1D": adaptive_pool(1), "AdaptiveMaxPooling2D": adaptive_pool(2), "AdaptiveMaxPooling3D": adaptive_pool(3),
    # recurrence
    "LSTM": gated(2), "GRU": gated(1), "SimpleRNN": gated(1),
    "RNN": cell("[layers.LSTMCell(2), layers.GRUCell(UNITS)]"),
    "LSTMCell": cell("layers.LSTMCell(UNITS)"), "GRUCell": cell("layers.GRUCell(UNITS)"),
    "SimpleRNNCell": cell("layers.SimpleRNNCell(UNITS)"),
    "StackedRNNCells": cell("layers.StackedRNNCells([layers.SimpleRNNCell(2), layers.LSTMCell(UNITS)])"),
    "ConvLSTM1D": conv_lstm(1), "ConvLSTM2D": conv_lstm(2), "ConvLSTM3D": conv_lstm(3),
    "Bidirectional": Kind(R2, bidirectional),
    "TimeDistributed": Kind((*R2, *R3), time_distributed),
    # merging
    "Add": merging(), "Average": merging(), "Maximum": merging(), "Minimum": merging(), "Multiply": merging(), "Subtract": merging(),
    "Concatenate": Kind(ANY, concatenate, inputs=2, call="list"),
    "Dot": Kind((*R1, *R2), dot, inputs=2, call="list"),
    # normalization
    "BatchNormalization": normalization(*ANY, *R4, momentum=["0.5", "0.9"], scale=["False", "True"], center=["False", "True"]),
    "LayerNormalization": normalization(*ANY, scale=["False", "True"]),
    "GroupNormalization": normalization(*R2, *R3, groups=["1"]),
    "RMSNormalization": normalization(),
    "UnitNormalization": same(),
    "SpectralNormalization": Kind((*R1, *R2, *R3), spectral),
    # regularization
    "Dropout": same(rate=["0.3"]),
    "AlphaDropout": same(rate=["0.3"]),
    "GaussianDropout": same(rate=["0.3"]),
    "GaussianNoise": same(stddev=["0.1"]),
    "ActivityRegularization": same(l1=["0.01", "0.1"], l2=["0.01", "0.1"]),
    "SpatialDropout1D": same(*R2, rate=["0.3"]), "SpatialDropout2D": same(*R3, rate=["0.3"]), "SpatialDropout3D": same(*R4, rate=["0.3"]),
    # shape
    "Flatten": Kind((*R2, *R3, *R4, *R5), lambda chance, shape: ({}, (math.prod(shape),))),
    "Permute": Kind((*R2, *R3), permute),
    "RepeatVector": Kind(R1, lambda chance, shape: ({"n": "3"}, (3, *shape))),
    "Reshape": Kind(ANY, reshape),
    "Cropping1D": padded(1, -2, "cropping"), "Cropping2D": padded(2, -2, "cropping"), "Cropping3D": padded(3, -2, "cropping"),
    "ZeroPadding1D": padded(1, 2, "padding"), "ZeroPadding2D": padded(2, 2, "padding"), "ZeroPadding3D": padded(3, 2, "padding"),
    "UpSampling1D": upsampling(1), "UpSampling2D": upsampling(2), "UpSampling3D": upsampling(3),
    # numbers, categories and text
    "CategoryEncoding": Kind(((4,),), category, takes="int"),
    "Discretization": Kind(R1, lambda chance, shape: ({"bin_boundaries": "[-1.0, 0.0, 1.0]", "output_mode": "'multi_hot'"}, (4,)),
        plain=True),
    "Normalization": Kind(ANY, lambda chance, shape: ({"mean": "0.1", "variance": "2.0"}, shape)),
    "Rescaling": same(scale=["0.5"], offset=["0.1", "0.2"]),
    "Hashing": Kind(((4,),), lambda chance, shape: ({"num_bins": "8"}, shape),
        takes="string", gives="int", only=("tensorflow",), why_only=IN_TF),
    "HashedCrossing": Kind(((1,),), lambda chance, shape: ({"num_bins": "8"}, shape), takes="string", gives="int", inputs=2, call="tuple",
        only=("tensorflow",), why_only=IN_TF),
    "StringLookup": Kind(((4,),), lambda chance, shape: ({"vocabulary": "['a', 'b', 'c']"}, shape),
        takes="string", gives="int", only=("tensorflow",),
        why_only=IN_TF),
    "IntegerLookup": Kind(((4,),), lambda chance, shape: ({"vocabulary": "[1, 2, 3]"}, shape),
        takes="int", gives="int", only=("tensorflow",),
        why_only=IN_TF),
    "TextVectorization": Kind(((1,),), lambda chance, shape: ({"vocabulary": "['a', 'b', 'c']", "output_sequence_length": "4"}, (4,)),
        takes="string", gives="int", only=("tensorflow",), why_only=IN_TF),
    # sound
    "MelSpectrogram": Kind(((64,),), lambda chance, shape: (
        {"fft_length": "16", "sequence_stride": "8", "num_mel_bins": "4", "sampling_rate": "100", "min_freq": "1.0"}, UNKNOWN),
        accepts=lambda shape: shape[0] >= 32),
    "STFTSpectrogram": Kind(((32, 1),), lambda chance, shape: (
        {"frame_length": "8", "frame_step": "4", "mode": chance.one_of("'log'", "'magnitude'", "'real'")}, UNKNOWN),
        accepts=lambda shape: shape[0] >= 16),
    # images
    "CenterCrop": Kind(IMAGES, upright, accepts=lambda shape: min(shape[:2]) >= 4),
    "RandomCrop": Kind(IMAGES, upright, accepts=lambda shape: min(shape[:2]) >= 4),
    "Resizing": Kind((*R3, *IMAGES), upright),
    # Draws from Python's `random` in its call. In a compiled step that happens once per trace, and a second trace draws other numbers.
    "AugMix": augmentation(eager=True, value_range=RANGE),
    "AutoContrast": augmentation(value_range=RANGE),
    "ContrastLimitedAdaptiveHistogramEqualization": augmentation(value_range=RANGE, tile_grid_size=["(2, 2)"]),
    "CutMix": augmentation(factor=SMALL),
    "Equalization": augmentation(value_range=RANGE),
    "MixUp": augmentation(alpha=SMALL),
    "Pipeline": augmentation(plain=True, layers=["[layers.RandomFlip(), layers.RandomRotation(0.1)]"]),
    "RandAugment": augmentation(value_range=RANGE),
    "RandomBrightness": augmentation(factor=["0.3"], value_range=RANGE),
    "RandomColorDegeneration": augmentation(factor=["0.3"], value_range=RANGE),
    "RandomColorJitter": augmentation(value_range=RANGE, brightness_factor=["0.2"], contrast_factor=["0.2"]),
    "RandomContrast": augmentation(factor=["0.3"], value_range=RANGE),
    "RandomElasticTransform": augmentation(value_range=RANGE),
    "RandomErasing": augmentation(value_range=RANGE),
    "RandomFlip": augmentation(mode=["'horizontal'", "'vertical'"]),
    "RandomGaussianBlur": augmentation(value_range=RANGE),
    "RandomGrayscale": augmentation(factor=SMALL),
    "RandomHue": augmentation(factor=["0.3"], value_range=RANGE),
    "RandomInvert": augmentation(value_range=RANGE),
    "RandomPerspective": augmentation(factor=SMALL),
    "RandomPosterization": augmentation(factor=["4"], value_range=RANGE),
    "RandomRotation": augmentation(factor=["0.2"]),
    "RandomSaturation": augmentation(factor=["0.3"], value_range=RANGE),
    "RandomSharpness": augmentation(factor=["0.3"], value_range=RANGE),
    "RandomShear": augmentation(x_factor=["0.2"], y_factor=["0.2"]),
    "RandomTranslation": augmentation(height_factor=["0.2"], width_factor=["0.2"]),
    "RandomZoom": augmentation(height_factor=["0.2"]),
    "Solarization": augmentation(value_range=RANGE, threshold_factor=SMALL),
}  # fmt: skip

#: Second names, by the name under which the layer stands above.
ALIASES = {
    **{f"AvgPool{n}D": f"AveragePooling{n}D" for n in (1, 2, 3)},
    **{f"MaxPool{n}D": f"MaxPooling{n}D" for n in (1, 2, 3)},
    **{f"GlobalAvgPool{n}D": f"GlobalAveragePooling{n}D" for n in (1, 2, 3)},
    **{f"GlobalMaxPool{n}D": f"GlobalMaxPooling{n}D" for n in (1, 2, 3)},
    **{f"Convolution{n}D": f"Conv{n}D" for n in (1, 2, 3)},
    **{f"Convolution{n}DTranspose": f"Conv{n}DTranspose" for n in (1, 2, 3)},
    **{f"SeparableConvolution{n}D": f"SeparableConv{n}D" for n in (1, 2)},
}

#: Names that no trained model has as a layer of its own, with the reason.
LEFT_OUT = {
    "FlaxLayer": "it needs Flax, which is not among the packages of the tests; JaxLayer runs the same code",
    "Input": "it makes the input of a model: every functional and Sequential model drawn has one",
    "InputLayer": "what Input puts into a model: every functional and Sequential model drawn has one",
    "InputSpec": "it describes inputs and is no layer",
    "MaxNumBoundingBoxes": "it pads bounding boxes and passes images on as they are: nothing to train behind it",
    "TFSMLayer": "it calls a SavedModel for inference; its weights do not train",
    "Wrapper": "a base class whose call is not implemented; Bidirectional, TimeDistributed and SpectralNormalization are drawn",
}


def drawable(backend: str) -> list[str]:
    """The layers that a model of this backend can have, in alphabetical order."""
    return sorted(name for name, kind in LAYERS.items() if backend in kind.only)
