"""More samples of operators, as operators.py makes them: views, indexing, joining, convolution, pooling, attention with
masks in data/structure_operators.{json,safetensors}; functions that call several operators in data/functions.*.

Seeds follow from the operators' names, so none of these operators is sampled in operators.py too.
"""

import math

import torch
import torch.nn.functional as F

from operators import (BF16, BOOL, F32, F64, I32, I64, counts, entries, generator, given, ints, mask, positive, sample, t,
                       tensors, write)


def views():
    unbind = lambda x, dim: torch.unbind(x, dim)
    for shape, dim in (((3, 5), 0), ((3, 5), -1), ((2, 3, 4), 1), ((4,), 0), ((1, 3), 0), ((2, 0), 0)):
        sample("unbind", unbind, t(*shape), dim=dim)
    sample("unbind", unbind, t(3, 4), dim=0, unused=(1,), note="one output has no gradient")
    sample("unbind", unbind, ints(-9, 9, 2, 3), dim=1)
    sample("unbind", unbind, t(3, 5, dtype=BF16), dim=0)
    diagonal = lambda x, offset, dim1, dim2: torch.diagonal(x, offset, dim1, dim2)
    for shape, offset, a, b in (((3, 5), 0, 0, 1), ((3, 5), 1, 0, 1), ((5, 3), -2, 0, 1), ((2, 3, 4), 0, 1, 2),
                                ((2, 3, 4), 1, 2, 0), ((3, 3), 3, 0, 1), ((2, 4, 3), -1, -1, -2), ((0, 3), 0, 0, 1),
                                ((4, 4), -5, 0, 1)):
        sample("diagonal", diagonal, t(*shape), offset=offset, dim1=a, dim2=b)
    sample("diagonal", diagonal, ints(-9, 9, 3, 4), offset=0, dim1=0, dim2=1)
    sample("diagonal", diagonal, t(3, 4, dtype=F32), offset=0, dim1=1, dim2=0)
    as_strided = lambda x, shape, strides, offset: torch.as_strided(x, shape, strides, offset)
    for size, shape, strides, offset in (((12,), [3, 4], [4, 1], 0), ((12,), [3, 4], [1, 3], 0), ((3, 4), [2, 2], [4, 2], 1),
                                         ((9,), [4, 3], [2, 1], 0), ((5,), [3, 5], [0, 1], 0), ((6,), [], [], 4),
                                         ((6,), [0, 2], [1, 1], 0), ((2, 3, 2), [3, 2], [2, 6], 0)):
        sample("as_strided", as_strided, t(*size), shape=shape, strides=strides, offset=offset)
    sample("as_strided", as_strided, t(8, dtype=F32), shape=[3, 3], strides=[2, 1], offset=1)


def moving():
    flip = lambda x, dims: torch.flip(x, dims)
    for shape, dims in (((3, 5), [0]), ((3, 5), [-1]), ((3, 5), [0, 1]), ((2, 3, 4), [2, 0]), ((4,), [0]), ((3, 5), []),
                        ((1, 3), [0]), ((0, 3), [1])):
        sample("flip", flip, t(*shape), dims=dims)
    sample("flip", flip, ints(-9, 9, 2, 3), dims=[1])
    sample("flip", flip, mask(2, 3), dims=[0, 1])
    sample("flip", flip, t(7, dtype=BF16), dims=[0])
    roll = lambda x, shifts, dims: torch.roll(x, shifts, dims)
    for shape, shifts, dims in (((3, 5), [1], [0]), ((3, 5), [-2], [1]), ((3, 5), [1, 7], [0, -1]), ((2, 3, 4), [2, 3], [2, 1]),
                                ((7,), [3], [0]), ((7,), [-20], [0]), ((1, 3), [1], [0]), ((0, 3), [2], [0]),
                                ((3, 5), [2, 2], [1, 1])):
        sample("roll", roll, t(*shape), shifts=shifts, dims=dims)
    sample("roll", roll, ints(-9, 9, 5), shifts=[2], dims=[0])
    sample("roll", roll, t(5, dtype=F32), shifts=[2], dims=[0])

    def pad(x, padding, mode, value):
        if mode == "constant":
            return F.pad(x, padding, value=value)
        # PyTorch wants batch and channels before the padded dims.
        missing = 2 + len(padding) // 2 - x.dim()
        return F.pad(x[(None,) * missing], padding, mode)[(0,) * missing]

    for shape, padding, value in (((3, 5), [1, 2], 0.0), ((3, 5), [1, 2, 0, 1], 2.5), ((2, 3, 4), [0, 0, 2, 0], -1.0),
                                  ((3, 5), [-1, 1], 0.5), ((3, 5), [-1, -2, 1, -1], 0.0), ((4,), [0, 3], 1.0),
                                  ((3, 5), [0, 0], 1.0), ((0, 3), [1, 1, 2, 0], 3.0), ((2, 3, 2), [1, 0, 0, 1, 1, 1], 0.0)):
        sample("pad", pad, t(*shape), padding=padding, mode="constant", value=value)
    sample("pad", pad, ints(-9, 9, 2, 3), padding=[1, 1], mode="constant", value=7.0)
    sample("pad", pad, mask(2, 3), padding=[1, 0], mode="constant", value=1.0)
    sample("pad", pad, t(3, 5, dtype=BF16), padding=[1, 2], mode="constant", value=0.5)
    for mode in ("reflect", "replicate", "circular"):
        sample("pad", pad, t(5), padding=[2, 1], mode=mode, value=0.0)
        sample("pad", pad, t(2, 5), padding=[0, 4], mode=mode, value=0.0)
        sample("pad", pad, t(3, 4), padding=[1, 2, 2, 0], mode=mode, value=0.0)
        sample("pad", pad, t(2, 3, 4), padding=[3, 0], mode=mode, value=0.0)
        sample("pad", pad, t(3, 6, dtype=F32), padding=[1, 2], mode=mode, value=0.0)


def indexing():
    # The cut makes the gradient of a source that index does not cover right.
    scatter = lambda x, index, source, dim: torch.scatter(x, dim, index, source[tuple(slice(n) for n in index.shape)])

    def order(*shape, dim, extent):
        """Indices that do not repeat along dim: what two writes to one place give is not defined."""
        return lambda: torch.stack([torch.randperm(extent, generator=generator)[:shape[dim]]
                                    for _ in range(max(1, _others(shape, dim)))], -1).reshape(
            [shape[dim]] + [n for d, n in enumerate(shape) if d != dim % len(shape)]).movedim(0, dim).contiguous()

    for shape, index, dim, dtype in (((5, 7), (5, 3), 1, F64), ((5, 7), (4, 7), 0, F64), ((5, 7), (2, 4), -1, F64),
                                     ((2, 3, 5), (2, 2, 5), 1, F64), ((7,), (4,), 0, F64), ((5, 1), (5, 1), 1, F64),
                                     ((5, 7), (5, 3), 1, F32), ((3, 5), (3, 2), 1, BF16)):
        draw = order(*index, dim=dim, extent=shape[dim])
        sample("scatter", scatter, t(*shape, dtype=dtype), draw, t(*index, dtype=dtype), dim=dim)
        sample("scatter_value", lambda x, index, dim, value: torch.scatter(x, dim, index, value), t(*shape, dtype=dtype),
               draw, dim=dim, value=1.5)
    sample("scatter", scatter, t(5, 7), order(5, 3, dim=1, extent=7), t(6, 4), dim=1, note="a part of the source only")
    sample("scatter", scatter, ints(-9, 9, 3, 4), order(3, 2, dim=1, extent=4), ints(-9, 9, 3, 2), dim=1)
    sample("scatter", scatter, mask(3, 4), order(3, 2, dim=1, extent=4), mask(3, 2), dim=1)
    index_add = lambda x, index, source, dim: torch.index_add(x, dim, index, source)
    for shape, count, dim, dtype in (((5, 7), 3, 0, F64), ((5, 7), 9, -1, F64), ((2, 3, 4), 4, 1, F64), ((7,), 1, 0, F64),
                                     ((5, 7), 0, 0, F64), ((5, 1), 3, 1, F64), ((5, 7), 3, 0, F32), ((3, 4), 2, 1, BF16)):
        source = list(shape)
        source[dim] = count
        # bf16: no index twice, as sums are rounded in another order
        draw = order(count, dim=0, extent=shape[dim]) if dtype == BF16 else ints(0, shape[dim], count)
        sample("index_add", index_add, t(*shape, dtype=dtype), draw, t(*source, dtype=dtype), dim=dim)
    sample("index_add", index_add, ints(-9, 9, 3, 4), ints(0, 4, 6), ints(-9, 9, 3, 6), dim=1)

    index = lambda x, indices: x[tuple(indices)]
    for shape, indices, kind in (((5, 7), ((3,),), I64), ((5, 7), ((3,), (3,)), I64), ((2, 3, 4), ((5,), (5,)), I64),
                                 ((4, 3), ((2, 3),), I64), ((4, 3, 2), ((2, 1), (1, 3)), I64), ((4, 3), ((), (2,)), I64),
                                 ((4, 3), ((0,),), I64), ((7,), ((4,),), I32), ((3, 2, 2), ((4,), (4,), (4,)), I64)):
        drawn = [ints(-shape[i], shape[i], *s, dtype=kind) for i, s in enumerate(indices)]
        sample("index", index, t(*shape), drawn)
    sample("index", index, ints(-9, 9, 4, 3), [ints(0, 4, 3)])
    sample("index", index, mask(4, 3), [ints(0, 4, 3), ints(0, 3, 3)])
    sample("index", index, t(4, 3, dtype=F32), [ints(0, 4, 6)])
    index_put = lambda x, values, indices, accumulate: torch.index_put(x, tuple(indices), values, accumulate)
    for accumulate in (False, True):
        for shape, indices, values in (((5, 7), ((3,),), (3, 7)), ((5, 7), ((3,),), (7,)), ((5, 7), ((3,), (3,)), (3,)),
                                       ((2, 3, 4), ((2,), (1,)), (2, 4)), ((4, 3), ((2, 2),), ()),
                                       ((4, 3), ((2,),), (2, 1)), ((4, 3), ((0,),), (3,))):
            count = indices[0][0] * (indices[0][1] if len(indices[0]) > 1 else 1)
            first = (lambda c=count, n=shape[0], s=indices[0]:
                     torch.randperm(n, generator=generator)[:c].reshape(s)) if not accumulate and count <= shape[0] \
                else ints(-shape[0], shape[0], *indices[0])
            rest = [ints(0, shape[i + 1], *s) for i, s in enumerate(indices[1:])]
            sample("index_put", index_put, t(*shape), t(*values), [first, *rest], accumulate=accumulate)
        sample("index_put", index_put, ints(-9, 9, 4, 3), ints(-9, 9, 2, 3), [given([2, 0], I64)], accumulate=accumulate)
        sample("index_put", index_put, t(4, 3, dtype=F32), t(2, 3, dtype=F32), [given([-1, 0], I64)], accumulate=accumulate)


def _others(shape, dim):
    count = 1
    for d, n in enumerate(shape):
        count *= 1 if d == dim % len(shape) else n
    return count


def images():
    def conv2d(x, weight, bias, stride, padding, dilation, groups):
        return F.conv2d(x, weight, bias, stride, padding, dilation, groups)

    for x, weight, bias, stride, padding, dilation, groups, dtype in (
            ((1, 2, 4, 4), (3, 2, 3, 3), True, [1, 1], [0, 0], [1, 1], 1, F64),
            ((2, 2, 4, 3), (2, 2, 2, 2), False, [1, 1], [1, 1], [1, 1], 1, F64),
            ((2, 3, 4, 4), (4, 3, 2, 2), True, [2, 2], [0, 0], [1, 1], 1, F64),
            ((2, 2, 5, 4), (2, 2, 2, 2), True, [2, 1], [1, 0], [2, 1], 1, F64),
            ((2, 4, 3, 3), (4, 2, 2, 2), True, [1, 1], [0, 0], [1, 1], 2, F64),
            ((1, 4, 4, 4), (4, 1, 3, 3), False, [1, 1], [1, 1], [1, 1], 4, F64),
            ((2, 4, 3, 3), (8, 1, 2, 1), True, [1, 2], [0, 1], [1, 1], 4, F64),
            ((2, 3, 2, 3), (2, 3, 1, 1), True, [1, 1], [0, 0], [1, 1], 1, F64),
            ((2, 2, 1, 6), (3, 2, 1, 3), True, [1, 2], [0, 1], [1, 1], 1, F64),
            ((0, 2, 3, 3), (2, 2, 2, 2), True, [1, 1], [0, 0], [1, 1], 1, F64),
            ((2, 3, 8, 9), (5, 3, 3, 3), True, [2, 2], [1, 1], [1, 1], 1, F32),
            ((1, 2, 4, 4), (3, 2, 2, 2), True, [1, 1], [0, 0], [1, 1], 1, BF16)):
        sample("conv2d", conv2d, t(*x, dtype=dtype), t(*weight, dtype=dtype), t(weight[0], dtype=dtype) if bias else None,
               stride=stride, padding=padding, dilation=dilation, groups=groups)

    def max_pool2d(x, kernel_size, stride, padding, ceil_mode, dilation):
        return F.max_pool2d(x, kernel_size, stride, padding, dilation, ceil_mode)

    def avg_pool2d(x, kernel_size, stride, padding, ceil_mode, count_include_pad):
        return F.avg_pool2d(x, kernel_size, stride, padding, ceil_mode, count_include_pad)

    for shape, kernel, stride, padding, ceil_mode, dtype in (
            ((2, 2, 4, 4), [2, 2], [2, 2], [0, 0], False, F64), ((1, 2, 5, 4), [3, 2], [1, 2], [1, 1], False, F64),
            ((2, 1, 5, 5), [2, 2], [2, 2], [0, 0], True, F64), ((1, 2, 5, 6), [3, 3], [2, 2], [1, 1], True, F64),
            ((2, 3, 3, 3), [3, 3], [1, 1], [0, 0], False, F64), ((1, 1, 1, 7), [1, 3], [1, 2], [0, 1], False, F64),
            ((2, 3, 8, 9), [3, 2], [2, 2], [1, 0], False, F32), ((1, 2, 4, 4), [2, 2], [1, 1], [0, 0], False, BF16)):
        sample("max_pool2d", max_pool2d, t(*shape, dtype=dtype), kernel_size=kernel, stride=stride, padding=padding,
               ceil_mode=ceil_mode, dilation=[1, 1])
        for count_include_pad in (True, False) if dtype == F64 else (True,):
            sample("avg_pool2d", avg_pool2d, t(*shape, dtype=dtype), kernel_size=kernel, stride=stride, padding=padding,
                   ceil_mode=ceil_mode, count_include_pad=count_include_pad)
    sample("max_pool2d", max_pool2d, t(1, 2, 6, 6), kernel_size=[2, 2], stride=[2, 1], padding=[0, 0], ceil_mode=False,
           dilation=[2, 3])
    adaptive = lambda x, output_size: F.adaptive_avg_pool2d(x, output_size)
    for shape, size, dtype in (((2, 2, 4, 4), [2, 2], F64), ((1, 2, 5, 7), [3, 2], F64), ((2, 3, 3, 4), [1, 1], F64),
                               ((1, 1, 2, 3), [4, 3], F64), ((2, 2, 5, 6), [2, 4], F32)):
        sample("adaptive_avg_pool2d", adaptive, t(*shape, dtype=dtype), output_size=size)

    def interpolate(x, size, mode, align_corners):
        if mode == "nearest":
            return F.interpolate(x, size, mode="nearest")
        return F.interpolate(x, size, mode="linear" if x.dim() == 3 else "bilinear", align_corners=align_corners)

    for shape, size, dtype in (((2, 2, 3, 4), [6, 8], F64), ((1, 2, 5, 4), [3, 7], F64), ((1, 1, 4, 4), [4, 4], F64),
                               ((2, 3, 5), [8], F64), ((1, 2, 7), [3], F64), ((1, 1, 3, 2), [1, 1], F64),
                               ((1, 1, 1, 1), [2, 3], F64), ((1, 2, 5, 6), [9, 4], F32)):
        for mode, align_corners in (("nearest", False), ("linear", False), ("linear", True)):
            sample("interpolate", interpolate, t(*shape, dtype=dtype), size=size, mode=mode, align_corners=align_corners)


def attention():
    def sdpa(q, k, v, mask, is_causal, scale, dropout_p, seed, stream, offset, lower_right=False):
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        if lower_right:
            seen = torch.ones(q.shape[2], k.shape[2], dtype=BOOL).tril(k.shape[2] - q.shape[2])
            return F.scaled_dot_product_attention(q, k, v, seen, scale=scale or None)
        if q.dtype == BF16:
            m = mask.float() if mask is not None and mask.dtype == BF16 else mask
            return F.scaled_dot_product_attention(q.float(), k.float(), v.float(), m, is_causal=is_causal,
                                                  scale=scale or None).to(BF16)
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal, scale=scale or None)

    def some(*shape):
        """A mask under which every query sees its first key."""
        def draw():
            m = mask(*shape)()
            m[..., 0] = True
            return m
        return draw

    for batch, heads, kv, tq, tk, width, m, causal, scale, dtype in (
            (2, 2, 2, 3, 4, 3, None, False, 0.0, F64), (1, 4, 2, 3, 5, 2, None, False, 0.5, F64),
            (2, 2, 1, 3, 4, 3, some(3, 4), False, 0.0, F64), (2, 2, 2, 3, 4, 2, some(2, 1, 1, 4), False, 0.0, F64),
            (2, 2, 2, 3, 3, 3, t(3, 3), False, 0.0, F64), (2, 2, 1, 2, 3, 3, t(2, 2, 3), False, 0.7, F64),
            (2, 2, 2, 2, 3, 2, t(2, 2, 2, 3), False, 0.0, F64), (1, 2, 2, 3, 4, 3, t(1, 4), False, 0.0, F64),
            (2, 2, 2, 2, 3, 2, t(2, 1, 1, 3), False, 0.0, F64), (1, 2, 1, 4, 4, 3, None, True, 0.0, F64),
            (1, 1, 1, 1, 1, 1, t(), False, 1.0, F64), (2, 4, 2, 1, 3, 2, some(2, 4, 1, 3), False, 0.0, F64),
            (0, 2, 2, 3, 3, 2, None, False, 0.0, F64), (1, 2, 1, 70, 67, 5, some(1, 1, 70, 67), False, 0.0, F32),
            (1, 2, 2, 66, 66, 4, t(2, 66, 66, dtype=F32), False, 0.0, F32), (1, 2, 1, 33, 33, 8, None, True, 0.0, F32),
            (1, 2, 1, 5, 5, 4, t(5, 5, dtype=BF16), False, 0.0, BF16)):
        sample("scaled_dot_product_attention", sdpa, t(batch, heads, tq, width, dtype=dtype),
               t(batch, kv, tk, width, dtype=dtype), t(batch, kv, tk, width, dtype=dtype), m,
               is_causal=causal, scale=scale, dropout_p=0.0, seed=0, stream=0, offset=0)
    # A query that sees nothing: both give 0.
    sample("scaled_dot_product_attention", sdpa, t(1, 1, 2, 3), t(1, 1, 3, 3), t(1, 1, 3, 3),
           given([[True, False, True], [False, False, False]], BOOL), is_causal=False, scale=0.0, dropout_p=0.0, seed=0,
           stream=0, offset=0, note="the second query sees nothing")
    for batch, heads, kv, tq, tk, width, value, m, causal, lower_right, dtype in (
            (2, 2, 1, 3, 4, 3, 3, None, True, False, F64), (1, 2, 2, 4, 2, 2, 2, None, True, False, F64),
            (1, 2, 1, 1, 4, 3, 2, None, True, False, F64), (1, 2, 1, 2, 4, 3, 3, None, True, True, F64),
            (2, 2, 1, 3, 2, 2, 3, None, False, False, F64), (1, 2, 2, 2, 3, 2, 4, t(2, 3), False, False, F64),
            (1, 2, 1, 3, 3, 4, 1, None, True, False, F64), (1, 2, 1, 66, 70, 4, 6, None, True, False, F32),
            (1, 2, 1, 66, 70, 4, 6, None, True, True, F32), (1, 2, 1, 70, 65, 6, 4, None, True, False, F32)):
        sample("scaled_dot_product_attention", sdpa, t(batch, heads, tq, width, dtype=dtype),
               t(batch, kv, tk, width, dtype=dtype), t(batch, kv, tk, value, dtype=dtype), m,
               is_causal=causal, lower_right=lower_right, scale=0.0, dropout_p=0.0, seed=0, stream=0, offset=0)


def functions():
    """Functions that call several operators. An attribute is a number, a bool or a list of int."""
    for shape in ((3, 1, 5), (1, 1), (2, 3), (1, 2, 1, 3, 1), ()):
        sample("squeeze", lambda x: x.squeeze(), t(*shape))
    for shape, dim, extents in (((3, 6), 1, [2, 3]), ((6, 2), 0, [-1, 3]), ((2, 12), -1, [2, 3, 2]), ((2, 4), 1, [4, 1])):
        sample("unflatten", lambda x, dim, extents: x.unflatten(dim, extents), t(*shape), dim=dim, extents=extents)
    for shape, a, b in (((2, 3, 4), 0, -1), ((2, 3, 4, 2), -3, 2), ((3, 5), 1, 0)):
        sample("swapaxes", lambda x, dim0, dim1: x.swapaxes(dim0, dim1), t(*shape), dim0=a, dim1=b)
    for shape, source, destination in (((2, 3, 4), [0], [2]), ((2, 3, 4, 5), [0, -1], [-2, 0]), ((2, 3, 4), [2, 0], [0, 1]),
                                       ((2, 3), [], []), ((2, 3, 4, 2), [3, 1], [1, 2])):
        sample("movedim", lambda x, source, destination: x.movedim(source, destination), t(*shape), source=source,
               destination=destination)
    for shape, chunks, dim in (((7, 3), 3, 0), ((2, 6), 4, 1), ((2, 3), 5, -1), ((5,), 1, 0), ((6, 2), 3, 0)):
        sample("chunk", lambda x, chunks, dim: x.chunk(chunks, dim), t(*shape), chunks=chunks, dim=dim)
    for shape, repeats in (((2, 3), [2, 2]), ((3,), [2, 2]), ((1, 3), [4, 1]), ((2, 3), [1, 1]), ((2, 1, 3), [1, 2, 3]),
                           ((), [3]), ((2,), [0]), ((2, 3), [2, 1, 1])):
        sample("repeat", lambda x, repeats: x.repeat(repeats), t(*shape), repeats=repeats)
    for shape, repeats, dim in (((2, 3), 2, 0), ((2, 3), 3, -1), ((2, 1, 2), 2, 1), ((3,), 1, 0), ((2, 4, 3, 2), 2, 1)):
        sample("repeat_interleave", lambda x, repeats, dim: x.repeat_interleave(repeats, dim), t(*shape), repeats=repeats,
               dim=dim)
    for shape, index, dim in (((3, 5), (3, 2), 1), ((3, 5), (1, 2), 1), ((1, 5), (3, 2), 1), ((2, 3, 4), (2, 1, 4), 1)):
        sample("take_along_dim", lambda x, index, dim: torch.take_along_dim(x, index, dim), t(*shape),
               ints(0, shape[dim], *index), dim=dim)
    for shape, index, dim in (((3, 5), [1, 3], 1), ((3, 5), [2], 0), ((2, 3, 4), [0, 0, 2], -2), ((3, 5), [], 0)):
        sample("index_fill", lambda x, index, value, dim: x.index_fill(dim, index, value), t(*shape), given(index, I64),
               value=2.5, dim=dim)
    for shape in ((3, 5), (7,), (2, 2, 3), (0, 3)):
        sample("nonzero", lambda x: torch.nonzero(x), ints(0, 2, *shape))
    for shape, m in (((3, 5), (3, 5)), ((3, 5), (5,)), ((3, 1), (1, 4)), ((2, 3), ())):
        sample("masked_select", lambda x, m: torch.masked_select(x, m), t(*shape), mask(*m))
    for shape, keepdim in (((3, 5), 0), ((2, 3, 4), 1), ((), 0), ((7,), 1)):
        for op in ("argmax", "argmin"):
            sample(op, lambda x, keepdim, op=op: getattr(torch, op)(x, None, bool(keepdim)), t(*shape), keepdim=keepdim)
    clamp = lambda x, low, high: torch.clamp(x, low, high)
    for x, low, high in (((3, 5), (3, 5), (3, 5)), ((2, 3, 5), (5,), (3, 1)), ((3, 5), (), None), ((4,), None, (3, 4))):
        sample("clamp", clamp, t(*x), None if low is None else t(*low), None if high is None else t(*high))
    sample("clamp", clamp, given([-1.0, -0.5, 0.5, 1.0, 0.5]), given([-0.5, -0.5, -0.5, -0.5, 0.7]),
           given([0.5, 0.5, 0.5, 0.5, 0.3]), note="at the bounds, and bounds in the wrong order")
    sample("clamp", clamp, ints(-9, 9, 7), given([-1.5, 0, 1, -3, -4, 0, 2]), None)
    for op in ("eq", "ne", "lt", "le", "gt", "ge"):
        compare = lambda x, value, op=op: getattr(torch, op)(x, value)
        sample(op, compare, ints(0, 4, 7), value=2.5)
        sample(op, compare, given([2 ** 53, 2 ** 53 + 1, -1], I64), value=2 ** 53)
        sample(op, compare, mask(5), value=2)
        sample(op, compare, given([2 ** 31 - 1, 0], I32), value=2 ** 31 - 1)

    def index(x, *indices):
        return x[tuple(slice(None) if i is None else i for i in indices)]

    def index_put(x, values, *indices, accumulate):
        where = tuple(slice(None) if i is None else i for i in indices)
        if not accumulate:
            y = x.clone()
            y[where] = values
            return y
        # PyTorch adds only at tensors of indices.
        flat = torch.arange(x.numel()).reshape(x.shape)[where]
        return x.reshape(-1).index_add(0, flat.reshape(-1), values.expand(flat.shape).reshape(-1)).reshape(x.shape)

    for shape, indices, values in (((3, 5), (None, (4,)), (3, 4)), ((2, 3, 4), (None, (5,)), (4,)), ((2, 3, 4), (None, None, (2, 2)), (3, 2, 2)),
                                   ((2, 3, 4), ((3,), None, (3,)), (3, 3)), ((2, 3, 4, 2), (None, (3,), (2, 1)), (2, 3, 2)),
                                   ((2, 3, 4), (None, ()), (2, 4)), ((2, 3, 4), ((2,), None), ())):
        # each position once: what two writes to one place give is not defined
        drawn = [None if i is None else ints(-shape[d], shape[d], *i) for d, i in enumerate(indices)]
        sample("index", index, t(*shape), *drawn)
        distinct = [None if i is None else
                    (lambda i=i, n=shape[d]: torch.randperm(max(n, math.prod(i)), generator=generator)[:math.prod(i)].reshape(i) % n)
                    for d, i in enumerate(indices)]
        sample("index_put", index_put, t(*shape), t(*values), *distinct, accumulate=True)
        if all(i is None or math.prod(i) <= shape[d] for d, i in enumerate(indices)):
            sample("index_put", index_put, t(*shape), t(*values), *distinct, accumulate=False)
    for shape, masks in (((3, 5), ((3, 5),)), ((3, 5), ((3,),)), ((3, 5), (None, (5,))), ((2, 3, 4), ((2, 3),)),
                         ((2, 3, 4), (None, (3, 4))), ((4, 2), ((4,), (1,)))):
        drawn = [None if m is None else (ints(0, 2, 1) if m == (1,) else mask(*m)) for m in masks]
        sample("index", index, t(*shape), *drawn)
        sample("index_put", index_put, t(*shape), t(), *drawn, accumulate=False)

    def cross_entropy(x, targets, weight, reduction, ignore_index, label_smoothing):
        names = ("none", "sum", "mean")
        return F.cross_entropy(x.movedim(-1, 1) if x.dim() > 1 else x, targets,
                               None if weight is None else weight.detach(), ignore_index=ignore_index,
                               reduction=names[reduction], label_smoothing=label_smoothing)

    for reduction in range(3):
        for shape, weighted, label_smoothing, ignore_index, dtype in (
                ((5, 7), False, 0.0, -100, F64), ((5, 7), True, 0.0, 2, F64), ((5, 7), False, 0.1, 3, F64),
                ((2, 3, 4), True, 0.3, 1, F64), ((6, 3), False, 1.0, 0, F64), ((5, 37), True, 0.1, -100, F32)):
            sample("cross_entropy", cross_entropy, t(*shape, dtype=dtype), ints(0, shape[-1], *shape[:-1]),
                   positive(shape[-1], dtype=dtype) if weighted else None, reduction=reduction, ignore_index=ignore_index,
                   label_smoothing=label_smoothing)
    group_norm = lambda x, weight, bias, groups, eps: F.group_norm(x, groups, weight, bias, eps)
    for shape, groups, affine, dtype in (((2, 4), 2, True, F64), ((2, 6, 5), 3, True, F64), ((2, 4, 3, 2), 1, True, F64),
                                         ((3, 4, 2, 2), 4, False, F64), ((2, 8, 3, 3), 4, True, F32),
                                         ((2, 4, 3, 2), 2, True, BF16)):
        w = lambda: t(shape[1], dtype=dtype) if affine else None
        sample("group_norm", group_norm, t(*shape, dtype=dtype), w(), w(), groups=groups, eps=1e-5)

    def batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps):
        mean, var = (running_mean.detach().clone(), running_var.detach().clone()) if running_mean is not None else (None, None)
        y = F.batch_norm(x, mean, var, weight, bias, training, momentum, eps)
        return (y, mean, var) if mean is not None and training else y

    for shape, running, affine, training, dtype in (
            ((4, 3), True, True, True, F64), ((3, 2, 4), True, False, True, F64), ((2, 3, 2, 2), False, True, True, F64),
            ((4, 3), True, True, False, F64), ((2, 3, 2, 2), True, False, False, F64), ((5, 3, 4), True, True, True, F32)):
        w = lambda draw: draw(shape[1], dtype=dtype) if affine else None
        sample("batch_norm", batch_norm, t(*shape, dtype=dtype), t(shape[1], dtype=dtype) if running else None,
               positive(shape[1], dtype=dtype) if running else None, w(t), w(t), training=training, momentum=0.1, eps=1e-5)
    conv1d = lambda x, weight, bias, stride, padding, dilation, groups: F.conv1d(x, weight, bias, stride, padding, dilation,
                                                                                groups)
    for x, weight, bias, stride, padding, dilation, groups in (
            ((2, 2, 7), (3, 2, 3), True, 1, 0, 1, 1), ((1, 4, 6), (4, 2, 2), True, 2, 1, 1, 2), ((2, 3, 8), (2, 3, 3), False, 1, 2, 2, 1),
            ((3, 5), (2, 3, 2), True, 1, 0, 1, 1), ((1, 3, 5), (3, 1, 3), True, 1, 1, 1, 3)):
        sample("conv1d", conv1d, t(*x), t(*weight), t(weight[0]) if bias else None, stride=[stride], padding=[padding],
               dilation=[dilation], groups=groups)
    for x, weight in (((2, 4, 4), (3, 2, 2, 2)), ((3, 5, 4), (2, 3, 3, 3))):
        sample("conv2d", lambda x, weight: F.conv2d(x, weight, stride=2, padding=1), t(*x), t(*weight))
    for shape in ((2, 4, 4), (1, 5, 6)):
        sample("max_pool2d", lambda x: F.max_pool2d(x, 2), t(*shape))
        sample("avg_pool2d", lambda x: F.avg_pool2d(x, 2), t(*shape))
        sample("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, 3), t(*shape))
    for shape, shifts in (((3, 5), 4), ((2, 3, 2), -5)):
        sample("roll", lambda x, shifts: torch.roll(x, shifts), t(*shape), shifts=[shifts])
    for alpha in (0.5, -2.0):
        sample("index_add", lambda x, index, source, alpha: torch.index_add(x, 0, index, source, alpha=alpha), t(4, 3),
               ints(0, 4, 5), t(5, 3), alpha=alpha)


def main():
    for part in (views, moving, indexing, images, attention):
        part()
    write("structure_operators")
    for kept in (entries, tensors, counts):
        kept.clear()
    functions()
    write("functions")


if __name__ == "__main__":
    main()
