"""Further samples in the form of operators.py: data/math_operators.json, data/math_operators.safetensors."""

import math

import torch
import torch.nn.functional as F

from common import DATA, write_json, write_tensors
from operators import (BF16, BOOL, F32, F64, I32, I64, U8, counts, entries, given, ints, mask, nonzero, positive, sample,
                       scaled, t, tensors)

INFINITY, NAN = math.inf, math.nan


def within(low, high, *shape, dtype=F64):
    """Evenly spread between two numbers, in no order, none of them near another one or the bounds."""
    count = math.prod(shape)
    values = low + (high - low) * (torch.arange(count, dtype=F64) * 7 % max(count, 1) + 0.5) / max(count, 1)
    return lambda: values.reshape(shape).to(dtype)


def shuffled(*shape, dtype=F64):
    """Different numbers: an order of its own in each row and column."""
    count = math.prod(shape)
    return lambda: (((torch.arange(count) * 29 + 5) % 61).to(F64) / 8 - 3).reshape(shape).to(dtype)


def unary():
    any_number = dict(sign=t, floor=t, ceil=t, round=t, trunc=t, frac=t, exp2=t, expm1=t, log2=positive, log10=positive,
                      log1p=positive, tan=lambda *s, **k: within(-1.3, 1.3, *s, **k),
                      asin=lambda *s, **k: within(-0.95, 0.95, *s, **k), acos=lambda *s, **k: within(-0.95, 0.95, *s, **k),
                      atan=t, sinh=t, cosh=t, erf=t, log_sigmoid=t, mish=t, hardswish=lambda *s, **k: scaled(3.0, *s, **k),
                      hardsigmoid=lambda *s, **k: scaled(3.0, *s, **k))
    # PyTorch's own hardsigmoid multiplies its gradient by a sixth in f32.
    functions = dict(log_sigmoid=F.logsigmoid, mish=F.mish, hardswish=F.hardswish,
                     hardsigmoid=lambda x: F.relu6(x + 3) / 6)
    for op, draw in any_number.items():
        f = functions[op] if op in functions else getattr(torch, op)
        sample(op, f, draw(3, 5))
        sample(op, f, draw(2, 1, 7))
        sample(op, f, draw(0, 3))
        sample(op, f, draw(37, dtype=F32))
        sample(op, f, draw(3, 5, dtype=BF16))
    halves = [-2.5, -1.5, -0.5, 0.0, 0.5, 1.5, 2.5, 1025.5]
    for op in ("floor", "ceil", "round", "trunc", "frac"):
        sample(op, getattr(torch, op), given(halves), note="halves")
    for op in ("expm1", "log1p"):
        sample(op, getattr(torch, op), given([1e-12, -1e-12, 1e-5, 0.0]), note="near 0")
        sample(op, getattr(torch, op), given([1e-6, -1e-6, 1e-3, 0.0], F32), note="near 0")
    for op in ("log_sigmoid", "mish"):
        sample(op, functions[op], scaled(60.0, 4, 5), note="large arguments")
        sample(op, functions[op], scaled(40.0, 4, 5, dtype=F32), note="large arguments")
    for op in ("hardswish", "hardsigmoid"):
        sample(op, functions[op], given([-4.0, -3.0, 0.0, 3.0, 4.0]), note="at the bends")

    leaky = lambda x, negative_slope: F.leaky_relu(x, negative_slope)
    elu = lambda x, alpha: F.elu(x, alpha)
    softplus = lambda x, beta, threshold: F.softplus(x, beta, threshold)
    hardtanh = lambda x, min_val, max_val: F.hardtanh(x, min_val, max_val)
    for shape, dtype in (((3, 5), F64), ((2, 1, 7), F64), ((), F64), ((0, 3), F64), ((37,), F32), ((3, 5), BF16)):
        sample("leaky_relu", leaky, t(*shape, dtype=dtype), negative_slope=0.1)
        sample("elu", elu, t(*shape, dtype=dtype), alpha=1.5)
        sample("softplus", softplus, t(*shape, dtype=dtype), beta=1.0, threshold=20.0)
        sample("hardtanh", hardtanh, t(*shape, dtype=dtype), min_val=-1.0, max_val=0.5)
    sample("softplus", softplus, scaled(20.0, 4, 5), beta=0.5, threshold=3.0)
    sample("hardtanh", hardtanh, given([-1.0, -0.5, 0.0, 0.5, 1.0]), min_val=-0.5, max_val=0.5,
           note="the gradient at the bounds themselves is 0")
    sample("leaky_relu", leaky, given([-1.0, 0.0, 2.0]), negative_slope=0.25, note="at 0")
    nan_to_num = lambda x, nan, posinf, neginf: torch.nan_to_num(x, nan, posinf, neginf)
    for dtype in (F64, F32, BF16):
        sample("nan_to_num", nan_to_num, given([[1.5, NAN, INFINITY], [-INFINITY, 0.0, -2.5]], dtype), nan=0.5,
               posinf=9.0, neginf=-7.0)
    sample("nan_to_num", nan_to_num, t(2, 5), nan=0.0, posinf=1.0, neginf=1.0)
    for op in ("isnan", "isinf", "isfinite"):
        f = getattr(torch, op)
        for dtype in (F64, F32, BF16):
            sample(op, f, given([[1.5, NAN, INFINITY], [-INFINITY, 0.0, -2.5]], dtype))
        sample(op, f, ints(-2, 3, 5))
        sample(op, f, t(0, 3))
    for draw in (ints(-1, 2, 3, 5), ints(0, 2, 5, dtype=U8), mask(3, 5), given([0.0, -0.0, 1.5, NAN]),
                 given([0.0, 2.0], BF16)):
        sample("logical_not", torch.logical_not, draw)
    for draw in (ints(-9, 9, 3, 5), ints(-9, 9, 5, dtype=I32), ints(0, 255, 5, dtype=U8), mask(3, 5)):
        sample("bitwise_not", torch.bitwise_not, draw)


def binary():
    for op, first, second in (("pow", positive, t), ("atan2", nonzero, nonzero), ("fmod", t, nonzero),
                              ("remainder", t, nonzero), ("floor_divide", t, nonzero)):
        # PyTorch has no gradient of floor_divide, and yet asks for one.
        f = (lambda a, b: torch.floor_divide(a.detach(), b.detach())) if op == "floor_divide" else getattr(torch, op)
        sample(op, f, first(5, 7), second(5, 7))
        sample(op, f, first(3, 1, 5), second(4, 1))
        sample(op, f, first(), second(3, 5))
        sample(op, f, first(3, 0), second(1))
        sample(op, f, first(3, 5, dtype=F32), second(5, dtype=F32))
    for op in ("fmod", "remainder", "floor_divide"):
        f = (lambda a, b: torch.floor_divide(a.detach(), b.detach())) if op == "floor_divide" else getattr(torch, op)
        sample(op, f, ints(-9, 9, 3, 5), given([-3, -1, 1, 2, 7], I64))
        sample(op, f, ints(-9, 9, 5, dtype=I32), given([-3, -1, 1, 2, 7], I32))
        sample(op, f, ints(0, 99, 5, dtype=U8), given([1, 2, 3, 5, 7], U8))
        sample(op, f, given([7.5, -7.5, 7.5, -7.5, 6.0, -6.0]), given([2.0, 2.0, -2.0, -2.0, 3.0, 3.0]), note="signs")
        sample(op, f, given([1.0, -1.0, 0.0]), given([0.0, 0.0, 0.0]), note="by 0")
    sample("pow", torch.pow, nonzero(2, 5), given([0.0, 1.0, 2.0, 3.0, -2.0]), note="negative base, whole exponents")
    sample("pow", torch.pow, given([0.0, 0.0, 2.0]), given([0.0, 2.0, 0.0]), note="zeros")
    sample("pow", torch.pow, ints(-5, 6, 3, 4), given([0, 1, 2, 5], I64))
    for op in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        f = getattr(torch, op)
        sample(op, f, ints(-9, 9, 3, 5), ints(-9, 9, 5))
        sample(op, f, ints(-9, 9, 5, dtype=I32), ints(-9, 9, 5, dtype=I32))
        sample(op, f, ints(0, 255, 5, dtype=U8), ints(0, 255, 5, dtype=U8))
        sample(op, f, mask(3, 5), mask(3, 1))
    for op in ("logical_and", "logical_or", "logical_xor"):
        f = getattr(torch, op)
        sample(op, f, ints(-1, 2, 3, 5), ints(-1, 2, 5))
        sample(op, f, mask(3, 5), mask(3, 1))
        sample(op, f, ints(-1, 2, 3, 5, dtype=F64), ints(-1, 2, 5, dtype=F64))
        sample(op, f, ints(0, 2, 4, dtype=U8), ints(0, 2, 4, dtype=U8))


def ternary():
    lerp_scalar = lambda a, b, weight: torch.lerp(a, b, weight)
    addcmul = lambda x, a, b, value: torch.addcmul(x, a, b, value=value)
    addcdiv = lambda x, a, b, value: torch.addcdiv(x, a, b, value=value)
    for shapes, dtype in ((((3, 5), (3, 5), (3, 5)), F64), (((3, 5), (5,), (3, 1)), F64), (((4,), (2, 1, 4), ()), F64),
                          (((0, 3), (3,), (1, 3)), F64), (((37,), (37,), (37,)), F32), (((3, 5), (3, 5), (3, 5)), BF16)):
        x, a, b = shapes
        for weight in (0.25, 0.75):
            sample("lerp_scalar", lerp_scalar, t(*x, dtype=dtype), t(*a, dtype=dtype), weight=weight)
        sample("lerp", torch.lerp, t(*x, dtype=dtype), t(*a, dtype=dtype), t(*b, dtype=dtype))
        sample("addcmul", addcmul, t(*x, dtype=dtype), t(*a, dtype=dtype), t(*b, dtype=dtype), value=-0.5)
        sample("addcdiv", addcdiv, t(*x, dtype=dtype), t(*a, dtype=dtype), nonzero(*b, dtype=dtype), value=0.75)


def reductions():
    over = lambda f: lambda x, dims, keepdim: f(x, dim=dims, keepdim=keepdim)
    for op in ("all", "any"):
        f = over(getattr(torch, op))
        sample(op, f, mask(5, 7), dims=[0], keepdim=False)
        sample(op, f, mask(3, 4, 5), dims=[0, 2], keepdim=True)
        sample(op, f, mask(0, 5), dims=[0], keepdim=False, note="of nothing")
        sample(op, f, given([[1.0, 0.0], [2.0, NAN]]), dims=[1], keepdim=False)
        sample(op, f, ints(0, 2, 3, 5), dims=[0, 1], keepdim=False)
        sample(op, f, ints(0, 2, 3, 5, dtype=F32), dims=[1], keepdim=False)
    count = lambda x, dims: torch.count_nonzero(x, dims)
    sample("count_nonzero", count, mask(5, 7), dims=[0])
    sample("count_nonzero", count, ints(-1, 2, 3, 4, 5), dims=[0, 2])
    sample("count_nonzero", count, given([[1.0, 0.0, -0.0], [2.0, NAN, 0.0]]), dims=[1])
    sample("count_nonzero", count, ints(-1, 2, 5, 7, dtype=F32), dims=[0, 1])
    sample("count_nonzero", count, ints(-1, 2, 0, 7, dtype=F64), dims=[0])
    std = lambda x, dims, keepdim, correction: torch.std(x, dim=dims, keepdim=keepdim, correction=correction)
    sample("std", std, t(5, 7), dims=[0], keepdim=False, correction=1)
    sample("std", std, t(5, 7), dims=[-1], keepdim=True, correction=0)
    sample("std", std, t(3, 4, 5), dims=[0, 2], keepdim=False, correction=1)
    sample("std", std, t(5, 37, dtype=F32), dims=[1], keepdim=False, correction=1)
    norm = lambda x, dims, keepdim, p: torch.linalg.vector_norm(x, p, dim=dims, keepdim=keepdim)
    for p in (2.0, 1.0, 3.0, 0.5):
        sample("norm", norm, nonzero(3, 5), dims=[1], keepdim=False, p=p)
        sample("norm", norm, nonzero(2, 3, 4), dims=[0, 2], keepdim=True, p=p)
    sample("norm", norm, t(5, 7), dims=[0, 1], keepdim=False, p=2.0)
    sample("norm", norm, t(0, 5), dims=[0], keepdim=False, p=2.0, note="of nothing")
    sample("norm", norm, t(5, 37, dtype=F32), dims=[1], keepdim=False, p=2.0)
    sample("norm", norm, t(5, 37, dtype=BF16), dims=[1], keepdim=False, p=1.0)
    sample("norm", norm, given([[0.0, 0.0], [3.0, -4.0]]), dims=[1], keepdim=False, p=2.0, note="the gradient at 0 is 0")
    sample("norm", norm, given([[0.0, 0.0], [3.0, -4.0]]), dims=[1], keepdim=False, p=1.0, note="the gradient at 0 is 0")
    along = lambda f: lambda x, dim: f(x, dim)
    for op in ("cumprod", "logcumsumexp"):
        f = along(getattr(torch, op))
        for shape, dim, dtype in (((5, 7), 0, F64), ((5, 7), -1, F64), ((3, 4, 5), 1, F64), ((3, 1), 1, F64),
                                  ((0, 5), 0, F64), ((5, 17), 1, F32)):
            sample(op, f, t(*shape, dtype=dtype), dim=dim)
    sample("cumprod", torch.cumprod, given([[1.5, 0.0, 2.0], [0.0, 3.0, 0.0], [2.0, -1.0, 4.0]]), dim=1, note="zeros")
    sample("cumprod", torch.cumprod, ints(-3, 4, 3, 5), dim=1)
    sample("logcumsumexp", torch.logcumsumexp, scaled(300.0, 3, 5), dim=1, note="large arguments")
    at = lambda f: lambda x, dim, keepdim: f(x, dim=dim, keepdim=keepdim)
    for shape, dim, keepdim, dtype in (((5, 7), 0, False, F64), ((5, 7), -1, True, F64), ((3, 4, 5), 1, False, F64),
                                       ((3, 1, 5), 1, False, F64), ((0, 5), 1, False, F64), ((5, 7), 1, False, F32)):
        sample("argmin", at(torch.argmin), t(*shape, dtype=dtype), dim=dim, keepdim=keepdim)
        for op in ("max", "min"):
            sample(op, at(getattr(torch, op)), t(*shape, dtype=dtype), dim=dim, keepdim=keepdim)


def sorting():
    sort = lambda x, dim, descending: torch.sort(x, dim=dim, descending=descending, stable=True)
    topk = lambda x, k, dim, largest: torch.topk(x, k, dim=dim, largest=largest)
    for shape, dim, descending, dtype in (((5, 7), 0, False, F64), ((5, 7), -1, True, F64), ((3, 4, 5), 1, False, F64),
                                          ((3, 1), 1, False, F64), ((0, 5), 1, False, F64), ((5, 7), 1, True, F32),
                                          ((3, 5), 1, False, BF16)):
        sample("sort", sort, shuffled(*shape, dtype=dtype), dim=dim, descending=descending)
    for descending in (False, True):
        sample("sort", sort, ints(0, 3, 3, 9), dim=1, descending=descending, note="equal ones keep their order")
        sample("sort", sort, given([2.0, NAN, -INFINITY, 1.0, NAN, INFINITY]), dim=0, descending=descending)
    for shape, k, dim, largest, dtype in (((5, 7), 3, 1, True, F64), ((5, 7), 2, 0, False, F64), ((3, 4, 5), 4, 1, True, F64),
                                          ((5, 7), 0, 1, True, F64), ((0, 5), 2, 1, True, F64), ((5, 7), 3, -1, True, F32)):
        sample("topk", topk, shuffled(*shape, dtype=dtype), k=k, dim=dim, largest=largest)


def products():
    addmm = lambda c, a, b, beta, alpha: torch.addmm(c, a, b, beta=beta, alpha=alpha)
    baddbmm = lambda c, a, b, beta, alpha: torch.baddbmm(c, a, b, beta=beta, alpha=alpha)
    for bias, beta, alpha, dtype in (((5, 3), 0.5, 2.0, F64), ((3,), 1.0, -0.5, F64), ((5, 1), 0.0, 1.0, F64),
                                     ((3,), 2.0, 0.0, F64), ((5, 3), 0.5, 2.0, F32), ((3,), 0.5, 2.0, BF16)):
        sample("addmm", addmm, t(*bias, dtype=dtype), t(5, 7, dtype=dtype), t(7, 3, dtype=dtype), beta=beta, alpha=alpha)
    for bias, beta, alpha, dtype in (((2, 5, 3), 1.0, 1.0, F64), ((2, 1, 3), 0.5, 2.0, F64), ((1, 5, 1), 0.0, 1.0, F64),
                                     ((3,), 2.0, -0.5, F64), ((2, 5, 3), 0.5, 2.0, F32)):
        sample("baddbmm", baddbmm, t(*bias, dtype=dtype), t(2, 5, 7, dtype=dtype), t(2, 7, 3, dtype=dtype), beta=beta,
               alpha=alpha)
    for n, k, dtype in ((5, 7, F64), (1, 7, F64), (5, 1, F64), (0, 7, F64), (5, 0, F64), (17, 33, F32), (5, 7, BF16)):
        sample("mv", torch.mv, t(n, k, dtype=dtype), t(k, dtype=dtype))
        sample("dot", torch.dot, t(k, dtype=dtype), t(k, dtype=dtype))
        sample("outer", torch.outer, t(n, dtype=dtype), t(k, dtype=dtype))
    for counts, rows, k, n, dtype in (((2, 3, 1), 6, 5, 7, F64), ((2, 0, 3), 8, 3, 4, F64), ((0, 4), 5, 4, 1, F64),
                                      ((3,), 3, 1, 5, F64), ((0, 0), 3, 2, 3, F64), ((), 2, 3, 4, F64),
                                      ((1, 2), 4, 0, 3, F64), ((4, 2, 5), 12, 17, 9, F32), ((3, 4), 8, 8, 16, BF16)):
        groups = len(counts)
        sample("grouped_mm", grouped_mm, t(rows, k, dtype=dtype), t(groups, k, n, dtype=dtype), given(counts, I64), expected=-1)
        sample("grouped_outer", grouped_outer, t(rows, k, dtype=dtype), t(rows, n, dtype=dtype), given(counts, I64), expected=-1)


def group_rows(counts):
    ends = counts.cumsum(0).tolist()
    return [slice(begin, end) for begin, end in zip([0] + ends, ends)]


def grouped_mm(x, weight, counts, expected):
    products = [x[rows] @ w for rows, w in zip(group_rows(counts), weight)]
    y = torch.cat(products + [torch.zeros(x.shape[0] - int(counts.sum()), weight.shape[2], dtype=x.dtype)])
    if x.dtype == BF16:  # PyTorch's own, where it has one; it leaves rows of no group undefined
        own = F.grouped_mm(x, weight, offs=counts.cumsum(0).to(I32))
        assert torch.equal(own[:int(counts.sum())], y[:int(counts.sum())])
    return y + 0 * x.sum() + 0 * weight.sum()  # a gradient of 0 also where no group has rows


def grouped_outer(a, b, counts, expected):
    products = [a[rows].T @ b[rows] for rows in group_rows(counts)]
    y = torch.stack(products) if products else torch.zeros(0, a.shape[1], b.shape[1], dtype=a.dtype)
    return y + 0 * a.sum() + 0 * b.sum()


def losses():
    smooth = lambda a, b, beta: F.smooth_l1_loss(a, b, reduction="none", beta=beta)
    bce = lambda x, target: F.binary_cross_entropy_with_logits(x, target, reduction="none")
    kl = lambda x, target, log_target: F.kl_div(x, target, reduction="none", log_target=log_target)
    for shape, dtype in (((5, 7), F64), ((), F64), ((2, 1, 3), F64), ((0, 3), F64), ((37,), F32), ((5, 7), BF16)):
        for beta in (1.0, 0.25):
            sample("smooth_l1", smooth, t(*shape, dtype=dtype), t(*shape, dtype=dtype), beta=beta)
        sample("binary_cross_entropy_with_logits", bce, t(*shape, dtype=dtype), positive(*shape, dtype=dtype))
        sample("kl_div", kl, t(*shape, dtype=dtype), positive(*shape, dtype=dtype), log_target=False)
        sample("kl_div", kl, t(*shape, dtype=dtype), t(*shape, dtype=dtype), log_target=True)
    sample("binary_cross_entropy_with_logits", bce, scaled(60.0, 5, 7), positive(5, 7), note="large arguments")
    nll = lambda x, y, ignore_index: F.nll_loss(x, y, ignore_index=ignore_index, reduction="none")
    sample("nll_loss", nll, t(5, 7), ints(0, 7, 5), ignore_index=-100)
    sample("nll_loss", nll, t(9, 3), ints(0, 3, 9), ignore_index=1)
    sample("nll_loss", nll, t(4, 7), given([2, -100, 6, -100], I64), ignore_index=-100)
    sample("nll_loss", nll, t(0, 5), ints(0, 5, 0), ignore_index=-100)
    sample("nll_loss", nll, t(5, 101, dtype=F32), ints(0, 101, 5), ignore_index=-100)


def main():
    for part in (unary, binary, ternary, reductions, sorting, products, losses):
        part()
    write_tensors(DATA / "math_operators.safetensors", tensors)
    write_json(DATA / "math_operators.json", entries)
    print(len(entries), "samples of", len(counts), "operators,", len(tensors), "tensors")


if __name__ == "__main__":
    main()
