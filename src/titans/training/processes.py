"""The processes that train together, on Hugging Face Accelerate: one by default.

`accelerate launch` or `torchrun` start more. Every process holds its rows of the global batch and
their carried states; gradients are averaged over processes (data parallel) or the weights are
split over them as well (`train.sharding: full`, FSDP).
"""

import os
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from titans.errors import ConfigError


class Processes:
    """This process among its fellows."""

    def __init__(self, *, find_unused: bool = False) -> None:
        # Without a GPU, Accelerate must be told so, or it will not start gloo.
        handlers = [DistributedDataParallelKwargs(find_unused_parameters=find_unused)]
        self.accelerator = Accelerator(
            cpu=not torch.accelerator.is_available(),
            kwargs_handlers=handlers,  # type: ignore[arg-type]
        )

    @property
    def count(self) -> int:
        """Number of processes."""
        return self.accelerator.num_processes

    @property
    def rank(self) -> int:
        """Number of this one."""
        return self.accelerator.process_index

    @property
    def is_main(self) -> bool:
        """Whether this one writes files and talks."""
        return self.accelerator.is_main_process

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        return self.accelerator.device

    @property
    def idle(self) -> str:
        """What could help and does not, for the user; empty if nothing is wrong."""
        devices = torch.accelerator.device_count() if self.device.type != "cpu" else 0
        here = int(os.environ.get("LOCAL_WORLD_SIZE", self.count))
        if devices > here:
            return (
                f"{here} of {devices} {self.device.type} devices in use: start with "
                f"`torchrun --nproc_per_node={devices} -m titans.cli.main train ...` to use all"
            )
        is_launched = "ACCELERATE_DYNAMO_BACKEND" in os.environ
        if is_launched and self.device.type == "cpu" and self.count == 1:
            return (
                "`accelerate launch` started one process on this CPU, as it does by default: "
                "`torchrun --nproc_per_node=2 -m titans.cli.main train ...` starts two"
            )
        return ""

    def rows(self, batch_size: int) -> range:
        """The rows of a global batch that belong to this process."""
        if batch_size % self.count:
            raise ConfigError(
                f"train.batch_size ({batch_size}) must be a multiple of the number of processes "
                f"({self.count})"
            )
        share = batch_size // self.count
        return range(self.rank * share, (self.rank + 1) * share)

    def wait(self) -> None:
        """Until every process is here."""
        self.accelerator.wait_for_everyone()

    def sum(self, values: list[float]) -> list[float]:
        """Add up numbers over the processes."""
        if self.count == 1:
            return values
        total = torch.tensor(values, dtype=torch.float64, device=self._reduce_device())
        torch.distributed.all_reduce(total)
        return cast("list[float]", total.tolist())

    def _reduce_device(self) -> torch.device:
        return self.device if self.device.type != "mps" else torch.device("cpu")

    def wrap(self, model: PreTrainedModel) -> nn.Module:
        """The model, ready to average its gradients over the processes."""
        return self.accelerator.prepare_model(model)

    def shard(self, model: PreTrainedModel, *, free_early: bool) -> None:
        """Split the parameters over the processes (FSDP2), in place; alone, only move the model.

        Accelerate offers FSDP on GPUs only; `fully_shard` itself works on any device.

        Args:
            free_early: gather a block's parameters again for the backward pass. Not with carried
                states: they are copied after the forward pass, and views of parameters are in them.
        """
        model.to(self.device)  # type: ignore[arg-type]
        if self.count == 1:
            return
        # A state may hold views of the initial memory. Nothing in the models works in place.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        mesh = init_device_mesh(self.device.type, (self.count,))
        for block in _blocks(model):
            fully_shard(block, mesh=mesh, reshard_after_forward=free_early)
            # Called outside of the block's forward pass, and it needs the whole initial memory.
            register_fsdp_forward_method(block, "initial_state")
        fully_shard(model, mesh=mesh)

    def no_sync(self, model: nn.Module, *, last: bool) -> AbstractContextManager[object]:
        """Leave out the exchange of gradients, except after the last micro-batch of a step."""
        if last or self.count == 1 or is_sharded(model):
            return nullcontext()
        return self.accelerator.no_sync(model)

    def close(self) -> None:
        """Leave the process group, if this run made one."""
        if self.count > 1:
            self.accelerator.end_training()


def is_sharded(model: nn.Module) -> bool:
    """Whether parameters are split over processes."""
    return any(isinstance(module, FSDPModule) for module in model.modules())


def split_again(model: nn.Module) -> None:
    """Free what a forward pass without a backward pass left gathered."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def whole(tensor: Tensor) -> Tensor:
    """The full tensor of a split one. Every process must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def split_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """`tensor` distributed as `parameter` is."""
    if isinstance(parameter, DTensor) and tensor.shape == parameter.shape:
        return distribute_tensor(tensor, parameter.device_mesh, parameter.placements)
    return tensor


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The layers of the model: the entries of its longest ModuleList."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList)]
    return list(max(lists, key=len)) if lists else []
