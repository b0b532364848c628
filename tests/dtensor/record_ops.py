"""Writes what op_conformance replays: ATen calls with their results, taken from PyTorch's own operator samples.

usage: record_ops.py OUT [--per-op N] [--seed S] [--elements N]

Needs torch, numpy and expecttest; about 90 s. OUT is a torch.save of a list of
(dispatcher name, args, kwargs, outputs), of tensors, numbers, strings, None and lists only.
tests/dtensor/fixtures/ops.pt was made with: --per-op 1 --seed 0 --elements 96
"""

import argparse
import collections
import warnings

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

READABLE = {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
                  torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--per-op", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--elements", type=int, default=4096, help="largest tensor")
    return parser.parse_args()


class Recorder(TorchDispatchMode):
    """Keeps calls that a C++ program can repeat: `calls` is a list of (name, args, kwargs, outputs)."""

    def __init__(self, elements):
        super().__init__()
        self.elements = elements
        self.calls = []

    def can_be_read(self, value):
        if isinstance(value, torch.Tensor):
            return (value.layout == torch.strided and value.device.type == "cpu" and value.dtype in READABLE
                    and value.numel() <= self.elements and not value.is_conj() and not value.is_neg())
        if isinstance(value, (list, tuple)):
            return all(map(self.can_be_read, value))
        return value is None or isinstance(value, (bool, int, float, str))

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        copied = tree_map_only(torch.Tensor, lambda t: t.detach().clone(), (list(args), kwargs))
        result = op(*args, **kwargs)
        outputs = list(result) if isinstance(result, (list, tuple)) else [result]
        if op.namespace == "aten" and self.can_be_read([list(args), list(kwargs.values()), outputs]):
            name = op.name() if op._schema.overload_name else op._schema.name
            outputs = tree_map_only(torch.Tensor, lambda t: t.detach().clone(), outputs)
            self.calls.append((name, *copied, outputs))
        return result


def calls_of_sample(operator, sample, elements):
    with Recorder(elements) as recorder:
        try:
            result = operator(sample.input, *sample.args, **sample.kwargs)
            trained = [t for t in tree_leaves(result)
                       if isinstance(t, torch.Tensor) and t.requires_grad and t.is_floating_point()]
            if trained:
                sum(t.sum() for t in trained).backward()
        except Exception:  # some samples are meant to fail
            return []
    return recorder.calls


def calls(elements):
    from torch.testing._internal.common_methods_invocations import op_db
    for operator in op_db:
        dtype = next((d for d in (torch.float32, torch.int64, torch.bool) if operator.supports_dtype(d, "cpu")), None)
        if dtype is None:
            continue
        try:
            samples = list(operator.sample_inputs(
                "cpu", dtype, requires_grad=dtype.is_floating_point and operator.supports_autograd))[:20]
        except Exception:  # a sample that needs a package which is not there
            continue
        for sample in samples:
            yield from calls_of_sample(operator, sample, elements)


def main():
    options = arguments()
    warnings.filterwarnings("ignore")
    torch.manual_seed(options.seed)
    kept, counts, seen = [], collections.Counter(), set()
    for call in calls(options.elements):
        name = call[0]
        shapes = (name, *(str(tuple(x.shape)) if isinstance(x, torch.Tensor) else str(x)
                          for x in tree_leaves(call[1])))
        if counts[name] < options.per_op and shapes not in seen:
            counts[name] += 1
            seen.add(shapes)
            kept.append(call)
    torch.save(kept, options.out)
    print(f"{len(counts)} ops, {len(kept)} cases")


if __name__ == "__main__":
    main()
