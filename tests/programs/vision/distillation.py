"""Knowledge distillation: a model of two models that overrides `compute_loss` to have one taught by the other."""

from __future__ import annotations

import keras
from keras import layers, ops

from programs import data
from programs.program import Trained


def classifier(filters, name):
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(filters, 3, strides=2, padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.MaxPooling2D(2, strides=1, padding="same"),
            layers.Flatten(),
            layers.Dense(4),
        ],
        name=name,
    )


class Distiller(keras.Model):
    def __init__(self, student, teacher):
        super().__init__()
        self.teacher = teacher
        self.student = student

    def compile(self, optimizer, metrics, student_loss, distillation_loss, alpha=0.1, temperature=3.0):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss = student_loss
        self.distillation_loss = distillation_loss
        self.alpha, self.temperature = alpha, temperature

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, allow_empty=False, **kwargs):
        taught = self.teacher(x, training=False)
        own = self.student_loss(y, y_pred)
        soft = [ops.softmax(logits / self.temperature, axis=1) for logits in (taught, y_pred)]
        copied = self.distillation_loss(*soft) * self.temperature**2
        return self.alpha * own + (1 - self.alpha) * copied

    def call(self, x):
        return self.student(x)


def train(scope, callbacks):
    images, labels = data.digits()
    accuracy = keras.metrics.SparseCategoricalAccuracy
    teacher = classifier(8, "teacher")
    teacher.compile(
        "adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=[accuracy()]
    )
    first = teacher.fit(images, labels, batch_size=16, epochs=1, verbose=0, callbacks=callbacks).history
    distiller = Distiller(classifier(4, "student"), teacher)
    distiller.compile(
        optimizer=keras.optimizers.Adam(),
        metrics=[accuracy()],
        student_loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        distillation_loss=keras.losses.KLDivergence(),
    )
    second = distiller.fit(images, labels, batch_size=16, epochs=2, verbose=0, callbacks=callbacks).history
    return Trained(distiller, [first, second], others=(teacher,), optimizers=(teacher.optimizer,))
