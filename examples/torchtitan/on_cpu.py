"""Runs torchtitan 0.3 without a GPU, for examples and tests: `torchrun on_cpu.py ARGUMENTS` in
place of `torchrun -m torchtitan.train ARGUMENTS`.

It replaces what only GPUs have: names and figures of the device, and attention by a compiled
kernel. Attention sees the whole sequence here, also beyond the borders of documents. Pipelines take
microbatches, as they do in a torch above 2.13.
"""

import inspect
import runpy
import sys
from importlib import import_module
from types import ModuleType, SimpleNamespace

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle


class Kernels(ModuleType):
    """Has every name, and no kernel: triton is not there."""

    def __getattr__(self, name):
        return None


torch._utils._get_available_device_type = lambda: "cpu"
torch.cpu.get_device_name = lambda device=None: "cpu"
torch.cpu.get_device_properties = lambda device=None: SimpleNamespace(total_memory=1 << 34)
torch.cpu.memory_stats = lambda device=None: {}
torch.cpu.current_device = lambda: 0
torch.cpu.empty_cache = torch.cpu.reset_peak_memory_stats = lambda device=None: None

barrier = torch.distributed.barrier
torch.distributed.barrier = lambda group=None, async_op=False, device_ids=None: barrier(group)
torch.distributed.set_timeout = lambda timeout, group=None: None

divide = FSDPModule.set_gradient_divide_factor


def divide_outside(self, factor):
    divide(self, factor)
    self.set_force_sum_reduction_for_comms(True)  # gloo only sums.


FSDPModule.set_gradient_divide_factor = divide_outside


def step(self, *, arg_mbs, kwarg_mbs, target_mbs, losses, loss_kwargs, return_outputs):
    for stage in self._stages if isinstance(self, PipelineScheduleMulti) else [self._stage]:
        stage.has_backward = True
        stage.clear_runtime_states()
    self._step_microbatches(
        arg_mbs, kwarg_mbs, target_mbs, losses, return_outputs, loss_kwargs=loss_kwargs
    )


for schedule in PipelineScheduleSingle, PipelineScheduleMulti:
    if "arg_mbs" not in inspect.signature(schedule.step).parameters:
        schedule.step = step

kernels = "torchtitan.distributed.minimal_async_ep.kernels"
sys.modules[kernels] = Kernels(kernels)


def attention(self, q_BLNH, k_BLNH, v_BLNH, *, scale=None, enable_gqa=False, **_):
    q, k, v = (each.transpose(1, 2) for each in (q_BLNH, k_BLNH, v_BLNH))
    found = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=scale, enable_gqa=enable_gqa
    )
    return found.transpose(1, 2)


import_module("torchtitan.models.common.attention").FlexAttention.forward = attention
decoder = import_module("torchtitan.models.common.decoder").Decoder
decoder.get_attention_masks = lambda self, positions: None

if __name__ == "__main__":
    runpy.run_module("torchtitan.train", run_name="__main__", alter_sys=True)
