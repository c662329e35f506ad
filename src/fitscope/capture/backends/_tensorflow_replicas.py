"""Records a step on several replicas of `tf.distribute.MirroredStrategy`.

The strategy splits a batch by rows, and runs the step once for each replica on its rows. Nothing is gathered: each replica hands
out its own rows, or the statistics of them, and the writer thread puts them one after the other, in the order of replicas, which is
the order of the rows in the batch. Small tensors are joined inside the step, because an output of their own would cost more.

    loss                  the sum over replicas. Keras divides the loss of a replica, the mean over its rows, by the number of
                          replicas, and the strategy adds up the gradients: this sum is what the training minimises
    weight_gradients      the sum over replicas, before clipping: the gradient of that loss; `/local[0]` and so on are its parts
    weights, updates, learning_rate      those of the first replica: all replicas have the same
    metrics               from the states of all replicas, added up as Keras does at the end of an epoch
    other scalars         one for each replica, as a vector
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from fitscope.capture.backends._base import Ask
from fitscope.capture.backends._harvest import LOCAL, Harvest
from fitscope.capture.backends._tensorflow_taps import Collector, detach
from fitscope.capture.collector import kept
from fitscope.capture.layer_taps import Taps
from fitscope.pipeline.handover import Thin
from fitscope.sites import Site

#: The kinds that are the same on every replica.
_MIRRORED = ("weights", "updates", "learning_rate", "loss_scale")
_UNEVEN = "not every replica has it"
NO_LOOP = (
    "a custom step calls tf.distribute itself, on several replicas; fitscope sees several replicas only in fit, evaluate, predict "
    "and train_on_batch"
)


def why_not_replicas(strategy: Any) -> str | None:
    """Why a model under this strategy cannot be watched, or None."""
    name = type(strategy).__name__
    if name.startswith("ParameterServer"):
        return f"the model trains under tf.distribute with parameter servers ({name}), which is not supported"
    if strategy.num_replicas_in_sync == 1 or type(strategy) is tf.distribute.MirroredStrategy:
        return None
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return (
            f"the model trains under tf.distribute on several workers ({name}), which is not supported: plain fit fails there in Keras "
            "3.15 (keras#20585). Use MirroredStrategy on one machine, or keras.distribution on JAX"
        )
    return f"the model trains under tf.distribute with several replicas ({name}), which is not supported: only MirroredStrategy is"


class Replicas:
    """The replicas of one strategy."""

    def __init__(self, strategy: Any, adapter: Any) -> None:
        self._strategy = strategy
        self._adapter = adapter
        self._running = threading.local()
        self.devices: Sequence[str] = strategy.extended.worker_devices
        self._numbers = strategy.experimental_distribute_values_from_function(
            lambda context: context.replica_id_in_sync_group
        )

    def here(self) -> int | None:
        """The number of the replica that this thread runs, if any."""
        return getattr(self._running, "number", None)

    def run(self, step: Callable[[int, Any], Any], data: Any, phase: str) -> Any:
        """Runs the step on every replica, given its number and its rows; returns what Keras makes of the results."""
        from keras.src.backend.tensorflow.trainer import reduce_per_replica

        def on_one(data: Any, number: int) -> Any:
            self._running.number = number
            try:
                return step(number, data)
            finally:
                self._running.number = None

        results = self._strategy.run(on_one, args=(data, self._numbers))
        reduction = "concat" if phase == "predict" else "auto"
        return reduce_per_replica(results, self._strategy, reduction=reduction)

    # ---- what leaves the step --------------------------------------------------------------------------------

    def handed_out(
        self, ask: Ask, collectors: list[Collector], taps: list[Taps], zero: Any, *, compiled: bool
    ) -> tuple[Harvest, tuple[dict[str, Any], ...]]:
        """The sites of the step, and its tensors: those of all replicas together, then those of each."""
        whole = Harvest()
        each: list[dict[str, Any]] = [{} for _ in collectors]
        try:
            for device, collector in zip(self.devices, collectors, strict=True):
                with tf.device(device):
                    if compiled:
                        detach(collector, zero)
            with tf.device(self.devices[0]):
                self._merge(ask, collectors, taps, whole, each)
                whole.account()
                whole.failed.update(ask.left_out)
                tensors = ask.finish(
                    {n: t for n, t in whole.tensors.items() if n not in each[0]}, whole.sites
                )
            for number, device in enumerate(self.devices):
                with tf.device(device):
                    each[number] = ask.finish(each[number], whole.sites)
        except Exception as error:
            tensors, each, whole.broken = {}, [{} for _ in collectors], error
        return whole, (tensors, *each)

    def _merge(
        self,
        ask: Ask,
        collectors: list[Collector],
        taps: list[Taps],
        whole: Harvest,
        each: list[dict[str, Any]],
    ) -> None:
        """Sorts the tensors of all replicas: by name, one for all of them, or one for each."""
        for collector in collectors:
            whole.sites.update(collector.harvest.sites)
            whole.failed.update(collector.failed)
            whole.noted.extend(text for text in collector.noted if text not in whole.noted)
            whole.broken = whole.broken or collector.harvest.broken
        if taps:
            _metrics(taps, collectors[0])
        for name, site in list(whole.sites.items()):
            found = [c.harvest.tensors[name] for c in collectors if name in c.harvest.tensors]
            if site.base in (*_MIRRORED, "metrics"):
                if found:
                    whole.tensors[name] = found[0]
            elif len(found) == len(collectors):
                if site.base == "weight_gradients" and ask.wants[site.place].local:
                    for number, tensor in enumerate(found):
                        of_one = site.but(suffix=f"{LOCAL}[{number}]")
                        whole.sites[of_one], whole.tensors[of_one] = of_one, tensor
                together = self._together(site, found, mean=collectors[0].losses.mean)
                whole.tensors[name] = found if together is None else together
                if together is None:
                    for one, tensor in zip(each, found, strict=True):
                        one[name] = tensor
            elif found:
                whole.failed[site] = _UNEVEN

    def _together(self, site: Site, found: list[Any], *, mean: bool) -> Any | None:
        """One tensor for all replicas; None if each replica returns its own."""
        scalar = not isinstance(found[0], Thin) and found[0].shape.rank == 0
        if site.base == "weight_gradients" or (site.base == "loss" and scalar):
            total = tf.add_n(found)
            return total / len(found) if site.base == "loss" and mean else total
        if scalar:
            return tf.stack(found)
        if any(self._adapter.small(tensor) for tensor in found):
            return tf.concat(found, 0)
        return None


def _metrics(taps: list[Taps], collector: Collector) -> None:
    """Replaces the metrics of the first replica by those of all."""
    for own, (metric, _) in taps[0].states.items():
        with kept(collector, Site("metrics", label=own)):
            states = [one.states[own][1] for one in taps]
            state = [
                _merged_state(getattr(variable, "aggregation", "sum"), parts)
                for variable, *parts in zip(metric.variables, *states, strict=True)
            ]
            taps[0].show_metric(own, metric, state)


def _merged_state(aggregation: str, parts: list[Any]) -> Any:
    """One variable of a metric, as Keras reads it from all replicas."""
    if aggregation == "only_first_replica":
        return parts[0]
    total = tf.add_n(parts)
    return tf.cast(total / len(parts), total.dtype) if aggregation == "mean" else total


# ---- the same batch again -----------------------------------------------------------------------------------------


def again(iterator: Any, batches: Iterable[Any]) -> Any:
    """An iterator over batches drawn from that of a strategy, which gives each replica the same rows."""
    strategy, (source,) = iterator._strategy, iterator._iterators
    rows = itertools.chain.from_iterable(map(strategy.experimental_local_results, batches))
    first, *more = (tf.data.Dataset.from_tensors(some) for some in rows)
    for one in more:
        first = first.concatenate(one)
    # It has the spec of the user's own iterator, whose shapes may be partly unknown, so no step is traced again.
    dataset = tf.data.experimental.from_variant(
        tf.data.experimental.to_variant(first), structure=source._element_spec
    )
    given = type(source)(
        dataset=dataset, worker=source._worker, devices=source._devices, options=source._options,
        canonicalize_devices=source._canonicalize_devices,
    )  # fmt: skip
    found = type(iterator)(
        iterator._input_workers, [given], strategy, cardinality=iterator._cardinality,
        enable_get_next_as_optional=iterator._enable_get_next_as_optional, options=iterator._options,
        replica_order=iterator._replica_order,
    )  # fmt: skip
    found._element_spec = iterator._element_spec
    return found
