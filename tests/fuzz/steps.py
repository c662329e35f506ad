"""Training steps that people write themselves, as code for each backend: the guides' own, with changed gradients, with two models."""

from __future__ import annotations

HALVED = "grads = [None if g is None else 0.5 * keras.ops.convert_to_tensor(g) for g in grads]"

JAX = """
class Trained(BASE):
    def loss_of(self, trainable, non_trainable, x, y, weight):
        y_pred, non_trainable = self.stateless_call(trainable, non_trainable, x, training=True)
        return self.compute_loss(x, y, y_pred, weight), (y_pred, non_trainable)

    def train_step(self, state, data):
        trainable, non_trainable, optimizer, metrics = state
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        compute = jax.value_and_grad(self.loss_of, has_aux=True)
        (loss, (y_pred, non_trainable)), grads = compute(trainable, non_trainable, x, y, weight)
        CHANGED
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, grads, trainable)
        logs, after = {}, []
        for metric in self.metrics:
            mine = metrics[len(after) : len(after) + len(metric.variables)]
            if metric.name == "loss":
                mine = metric.stateless_update_state(mine, loss)
            else:
                mine = metric.stateless_update_state(mine, y, y_pred)
            result = metric.stateless_result(mine)
            logs.update(result if isinstance(result, dict) else {metric.name: result})
            after += mine
        return logs, (trainable, non_trainable, optimizer, after)
"""

TENSORFLOW = """
class Trained(BASE):
    def train_step(self, data):
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=weight)
            scaled = self.optimizer.scale_loss(loss)
        grads = tape.gradient(scaled, self.trainable_variables)
        CHANGED
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return self.get_metrics_result()
"""

TORCH = """
class Trained(BASE):
    def train_step(self, data):
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        self.zero_grad()
        y_pred = self(x, training=True)
        loss = self.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=weight)
        self.optimizer.scale_loss(loss).backward()
        grads = [variable.value.grad for variable in self.trainable_variables]
        with torch.no_grad():
            CHANGED
            self.optimizer.apply(grads, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return self.get_metrics_result()
"""

PENALTY = '''
class Trained(BASE):
    """A loss with a part of its own, which a metric follows."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.penalty = keras.metrics.Mean(name="penalty")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        squares = [keras.ops.mean(keras.ops.square(p)) for p in keras.tree.flatten(y_pred)]
        penalty = 0.1 * keras.ops.cast(sum(squares), loss.dtype)
        self.penalty.update_state(penalty)
        return loss + penalty
'''

PAIR = '''
class Pair(keras.Model):
    """A generator against a discriminator. x is the real data and the noise."""

    def __init__(self, generator, discriminator):
        super().__init__()
        self.generator, self.discriminator = generator, discriminator
        self.g_loss, self.d_loss = keras.metrics.Mean(name="g_loss"), keras.metrics.Mean(name="d_loss")

    @staticmethod
    def cross(wanted, logits):
        return keras.ops.mean(keras.losses.binary_crossentropy(wanted * keras.ops.ones_like(logits), logits, from_logits=True))
'''

PAIR_JAX = """
    def train_step(self, state, data):
        trainable, non_trainable, optimizer, metrics = state
        ((real, noise),) = data if len(data) == 1 else (data[0],)
        g, gn = len(self.generator.trainable_variables), len(self.generator.non_trainable_variables)
        generate, judge = self.generator.stateless_call, self.discriminator.stateless_call

        def g_loss(weights):
            fake, after = generate(weights, non_trainable[:gn], noise, training=True)
            logits, _ = judge(trainable[g:], non_trainable[gn:], fake, training=True)
            return self.cross(1.0, logits), (after, fake)

        def d_loss(weights, fake):
            on_fake, after = judge(weights, non_trainable[gn:], fake, training=True)
            on_real, after = judge(weights, after, real, training=True)
            return self.cross(0.0, on_fake) + self.cross(1.0, on_real), after

        (lg, (g_after, fake)), g_grads = jax.value_and_grad(g_loss, has_aux=True)(trainable[:g])
        (ld, d_after), d_grads = jax.value_and_grad(d_loss, has_aux=True)(trainable[g:], fake)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, g_grads + d_grads, trainable)
        logs, after = {}, []
        for metric in self.metrics:
            mine = metrics[len(after) : len(after) + len(metric.variables)]
            if metric.name in ("g_loss", "d_loss"):
                mine = metric.stateless_update_state(mine, lg if metric.name == "g_loss" else ld)
                logs[metric.name] = metric.stateless_result(mine)
            after += mine
        return logs, (trainable, g_after + d_after, optimizer, after)
"""

PAIR_TENSORFLOW = """
    def compile(self, optimizer, second, **settings):
        super().compile(**settings)
        self.g_optimizer, self.d_optimizer = optimizer, second

    def train_step(self, data):
        real, noise = data[0]
        with tf.GradientTape() as tape:
            on_fake = self.discriminator(self.generator(noise, training=True), training=True)
            ld = self.cross(0.0, on_fake) + self.cross(1.0, self.discriminator(real, training=True))
        weights = self.discriminator.trainable_variables
        self.d_optimizer.apply_gradients(zip(tape.gradient(ld, weights), weights))
        with tf.GradientTape() as tape:
            lg = self.cross(1.0, self.discriminator(self.generator(noise, training=True), training=True))
        weights = self.generator.trainable_variables
        self.g_optimizer.apply_gradients(zip(tape.gradient(lg, weights), weights))
        self.g_loss.update_state(lg)
        self.d_loss.update_state(ld)
        return {"g_loss": self.g_loss.result(), "d_loss": self.d_loss.result()}
"""

PAIR_TORCH = """
    def compile(self, optimizer, second, **settings):
        super().compile(**settings)
        self.g_optimizer, self.d_optimizer = optimizer, second

    def descend(self, optimizer, model, loss):
        self.zero_grad()
        loss.backward()
        grads = [variable.value.grad for variable in model.trainable_variables]
        with torch.no_grad():
            optimizer.apply(grads, model.trainable_variables)

    def train_step(self, data):
        real, noise = data[0]
        on_fake = self.discriminator(self.generator(noise, training=True).detach(), training=True)
        ld = self.cross(0.0, on_fake) + self.cross(1.0, self.discriminator(real, training=True))
        self.descend(self.d_optimizer, self.discriminator, ld)
        lg = self.cross(1.0, self.discriminator(self.generator(noise, training=True), training=True))
        self.descend(self.g_optimizer, self.generator, lg)
        self.g_loss.update_state(lg)
        self.d_loss.update_state(ld)
        return {"g_loss": self.g_loss.result(), "d_loss": self.d_loss.result()}
"""

STEPS = {"jax": JAX, "tensorflow": TENSORFLOW, "torch": TORCH}
PAIRS = {"jax": PAIR_JAX, "tensorflow": PAIR_TENSORFLOW, "torch": PAIR_TORCH}


def trained(step: str, backend: str, base: str) -> str:
    """The class `Trained`: a model with a training step of this kind."""
    if step == "add_loss":
        return PENALTY.replace("BASE", base)
    changed = HALVED if step == "gradients" else ""
    lines = STEPS[backend].replace("BASE", base).replace("CHANGED", changed).splitlines()
    return "\n".join(line for line in lines if line.strip() or not line) + "\n"


def pair(backend: str) -> str:
    return PAIR + PAIRS[backend]
