"""Two processes train one Keras model under torch's DistributedDataParallel and write one run.

KERAS_BACKEND=torch torchrun --nproc-per-node 2 torch_ddp.py
"""

import keras
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import fitscope as fs

dist.init_process_group("gloo")  # rank and address come from torchrun
torch.manual_seed(0)

layers = [keras.layers.Dense(16, activation="relu", name="hidden"), keras.layers.Dense(1, name="head")]
model = keras.Sequential([keras.Input((8,)), *layers])
optimizer = keras.optimizers.SGD(0.01)
optimizer.build(model.trainable_variables)
loss_of = keras.losses.MeanSquaredError()
parallel = DistributedDataParallel(model)  # copies the weights of rank 0 to all
scope = fs.Scope("runs", every=1)


@scope.step(model=model, optimizer=optimizer)
def step(x, y):
    model.zero_grad()
    loss = loss_of(y, parallel(x))
    loss.backward()  # DistributedDataParallel averages the gradients of all processes here
    with torch.no_grad():
        optimizer.apply(
            [variable.value.grad for variable in model.trainable_variables], model.trainable_variables
        )
    return loss


with scope:
    for number in range(8):
        random = torch.Generator().manual_seed(10 * number + dist.get_rank())  # each process has its own rows
        x = torch.randn(8, 8, generator=random)
        step(x, x.sum(dim=1, keepdim=True))

dist.barrier()
if dist.get_rank() == 0:
    run = fs.open("runs")
    print(run.ranks[["status", "step"]])
    print(run.series("loss", by="rank").tail(3))  # a loss is that of one process: the mean over its own rows
dist.destroy_process_group()
