"""The list of all programs: after which official one each is written, where it runs, and what CI runs of it."""

from __future__ import annotations

from dataclasses import dataclass, field

ALL = ("jax", "tensorflow", "torch")
JAX, TENSORFLOW, TORCH = (("jax",), ("tensorflow",), ("torch",))
FOUR_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}


@dataclass(frozen=True)
class Program:
    """One program, and what is expected of it."""

    name: str  #: of its module, in this folder
    after: str  #: the official program whose structure it follows, in the repository of keras.io
    backends: tuple[str, ...] = ALL
    quick: bool = False  #: CI runs it
    runs: int = 1  #: how many runs its trainings make
    environment: dict[str, str] = field(
        default_factory=dict
    )  #: it needs a process of its own, with these variables
    warns: dict[str, str] = field(
        default_factory=dict
    )  #: expected warnings: a regular expression, and the reason
    without: dict[str, str] = field(default_factory=dict)  #: kinds of sites it cannot have, and the reason


PROGRAMS = (
    Program("guides.train_step_jax", "guides/custom_train_step_in_jax.py", JAX, quick=True),
    Program("guides.train_step_tensorflow", "guides/custom_train_step_in_tensorflow.py", TENSORFLOW, quick=True),
    Program("guides.train_step_torch", "guides/custom_train_step_in_torch.py", TORCH, quick=True),
    Program("guides.loop_jax", "guides/writing_a_custom_training_loop_in_jax.py", JAX, quick=True),
    Program("guides.loop_tensorflow", "guides/writing_a_custom_training_loop_in_tensorflow.py", TENSORFLOW, quick=True),
    Program("guides.loop_torch", "guides/writing_a_custom_training_loop_in_torch.py", TORCH, quick=True),
    Program("guides.built_in_methods", "guides/training_with_built_in_methods.py", quick=True),
    Program("guides.transfer_learning", "guides/transfer_learning.py"),
    Program("guides.masking", "guides/understanding_masking_and_padding.py"),
    Program("guides.new_layers", "guides/making_new_layers_and_models_via_subclassing.py", quick=True),
    Program("guides.own_callbacks", "guides/writing_your_own_callbacks.py"),
    Program("guides.mixed_precision", "guides/training_with_built_in_methods.py"),
    Program("guides.quantization", "guides/int8_quantization_in_keras.py", quick=True),
    Program("guides.float8", "examples/keras_recipes/float8_training_and_inference_with_transformer.py"),
    Program("vision.convnet", "examples/vision/mnist_convnet.py"),
    Program("vision.vit", "examples/vision/image_classification_with_vision_transformer.py"),
    Program("vision.unet", "examples/vision/oxford_pets_image_segmentation.py"),
    Program("vision.siamese_contrastive", "examples/vision/siamese_contrastive.py"),
    Program("vision.distillation", "examples/vision/knowledge_distillation.py", runs=2),
    Program("vision.captcha", "examples/vision/captcha_ocr.py"),
    Program("nlp.transformer_classification", "examples/nlp/text_classification_with_transformer.py"),
    Program("nlp.seq2seq_transformer", "examples/nlp/neural_machine_translation_with_transformer.py"),
    Program("nlp.seq2seq_lstm", "examples/nlp/lstm_seq2seq.py"),
    Program("nlp.switch_transformer", "examples/nlp/text_classification_with_switch_transformer.py"),
    Program("generative.mini_gpt", "examples/generative/text_generation_with_miniature_gpt.py"),
    Program("generative.dcgan", "examples/generative/dcgan_overriding_train_step.py"),
    Program("generative.vae", "examples/generative/vae.py"),
    Program("generative.wgan_gp", "examples/generative/wgan_gp.py", ("tensorflow", "torch")),
    Program("generative.ddim", "examples/generative/ddim.py"),
    Program("vision.siamese_triplet", "examples/vision/siamese_network.py", ("tensorflow", "torch"), quick=True),
    Program("vision.simclr", "examples/vision/semisupervised_simclr.py", ("tensorflow", "torch"), runs=2),
    Program("rl.actor_critic", "examples/rl/actor_critic_cartpole.py", ("tensorflow", "torch")),
    Program("rl.dqn", "examples/rl/deep_q_network_breakout.py", quick=True),
    Program("graph.gat", "examples/graph/gat_node_classification.py"),
    Program("graph.gcn", "examples/graph/gnn_citations.py"),
    Program("structured.preprocessing", "examples/structured_data/structured_data_classification_from_scratch.py"),
    Program("structured.imbalance", "examples/structured_data/imbalanced_classification.py"),
    Program("structured.recommender", "examples/structured_data/collaborative_filtering_movielens.py"),
    Program("timeseries.weather", "examples/timeseries/timeseries_weather_forecasting.py"),
    Program("timeseries.anomaly", "examples/timeseries/timeseries_anomaly_detection.py"),
    Program("recipes.large_batches", "guides/training_with_built_in_methods.py"),
    Program("recipes.fused_steps", "guides/training_with_built_in_methods.py", ("jax", "tensorflow")),
    Program("recipes.trainer_pattern", "examples/keras_recipes/trainer_pattern.py", ("tensorflow", "torch")),
    Program("recipes.endpoint_layer", "examples/keras_recipes/endpoint_layer_pattern.py"),
    Program("recipes.own_optimizer", "examples/vision/gradient_centralization.py"),
    Program("recipes.batch_by_batch", "guides/training_with_built_in_methods.py", quick=True),
    Program("guides.distributed_loop_jax", "guides/distributed_training_with_jax.py", JAX, environment=FOUR_DEVICES),
    Program("guides.data_parallel", "guides/distribution.py", JAX, environment=FOUR_DEVICES),
    Program("guides.model_parallel", "guides/distribution.py", JAX, environment=FOUR_DEVICES),
)  # fmt: skip
