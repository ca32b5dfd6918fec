"""The hand-written derivatives of the convolution and the norms, against plain torch."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from titans.layers.norm import RMSNorm, fixed_length
from titans.layers.short_conv import ShortConv


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("time", [1, 2, 3, 9])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_convolution(time: int, size: int) -> None:
    conv = ShortConv(5, size).double()
    x, tail = draw(2, time, 5), draw(2, size - 1, 5)
    joined = torch.cat([tail, x], dim=1)
    starts = [size - 1 - lag for lag in range(size)]
    wanted = sum(
        joined[:, begin : begin + time] * w for begin, w in zip(starts, conv.weight, strict=True)
    )
    torch.testing.assert_close(conv(x, tail), wanted, rtol=1e-13, atol=1e-13)

    def run(x: Tensor, tail: Tensor, weight: Tensor) -> Tensor:
        return torch.func.functional_call(conv, {"weight": weight}, (x, tail))

    assert torch.autograd.gradcheck(run, (x, tail, conv.weight))


@pytest.mark.parametrize("length", [1.0, 4.0])
def test_fixed_length(length: float) -> None:
    x = draw(2, 3, 6)
    wanted = length * F.normalize(x, dim=-1)
    torch.testing.assert_close(fixed_length(x, length), wanted, rtol=1e-13, atol=1e-13)
    assert torch.autograd.gradcheck(lambda x: fixed_length(x, length), (x,))


def test_a_zero_vector_stays_zero_and_its_gradient_is_finite() -> None:
    x = torch.zeros(2, 4, requires_grad=True)
    y = fixed_length(x)
    y.sum().backward()
    assert x.grad is not None
    assert (y == 0).all() and x.grad.isfinite().all()
    # Through plain operations, as under `torch.compile`.
    plain = torch.func.grad(lambda x: fixed_length(x).sum())(x.detach())
    assert torch.equal(plain, x.grad)


def test_rms_norm() -> None:
    norm = RMSNorm(6, eps=1e-6).double()
    x, weight = draw(2, 3, 6), draw(6)

    def run(x: Tensor, weight: Tensor) -> Tensor:
        return torch.func.functional_call(norm, {"weight": weight}, (x,))

    torch.testing.assert_close(run(x, weight), F.rms_norm(x, (6,), weight, 1e-6))
    assert torch.autograd.gradcheck(run, (x, weight))
