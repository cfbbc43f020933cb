"""Samples of operators with PyTorch's meaning and their gradients: data/operators.json, data/operators.safetensors.

An entry: {"op", "sample": "op/k", "inputs", "attrs", "outputs", "grad_outputs", "grad_inputs"} and sometimes "note".
inputs holds tensor keys, null for an absent optional, or {"list": [keys]}. grad_inputs has one entry for each input,
a list counted tensor by tensor; null where there is no gradient (not floating, absent, or no output is floating).
"""

import math
import zlib

import torch
import torch.nn.functional as F

from common import DATA, write_json, write_tensors

F64, F32, BF16, F16, I64, I32, U8, BOOL = (
    torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool)
DTYPES = {"f64": F64, "f32": F32, "bf16": BF16, "f16": F16, "i64": I64, "i32": I32, "u8": U8, "bool": BOOL}

entries, tensors, counts = [], {}, {}
generator = torch.Generator()


def seed(op):
    """Each sample has its own random numbers: adding one changes no other."""
    generator.manual_seed(zlib.crc32(f"{op}/{counts.get(op, 0)}".encode()))


# Inputs are described first and drawn inside `sample`, in order.
def t(*shape, dtype=F64):
    return lambda: torch.randn(shape, generator=generator, dtype=F64).to(dtype)


def positive(*shape, dtype=F64):
    return lambda: (torch.rand(shape, generator=generator, dtype=F64) * 3 + 0.1).to(dtype)


def nonzero(*shape, dtype=F64):
    def draw():
        x = torch.randn(shape, generator=generator, dtype=F64)
        return (x + torch.where(x < 0, -0.3, 0.3)).to(dtype)
    return draw


def scaled(factor, *shape, dtype=F64):
    return lambda: (factor * torch.randn(shape, generator=generator, dtype=F64)).to(dtype)


def ints(low, high, *shape, dtype=I64):
    return lambda: torch.randint(low, high, shape, generator=generator).to(dtype)


def mask(*shape):
    return lambda: torch.rand(shape, generator=generator) < 0.5


def given(values, dtype=F64):
    return lambda: torch.tensor(values, dtype=dtype)


def store(key, x):
    tensors[key] = x.detach().clone().contiguous()
    return key


def sample(op, function, *inputs, note=None, unused=(), **attrs):
    """`unused`: numbers of outputs whose gradient is absent."""
    seed(op)
    name = f"{op}/{counts.get(op, 0)}"
    counts[op] = counts.get(op, 0) + 1

    def draw(description):
        x = description()
        return x.requires_grad_() if x.is_floating_point() else x

    drawn = [None if i is None else [draw(e) for e in i] if isinstance(i, list) else draw(i) for i in inputs]
    flat = [x for i in drawn for x in (i if isinstance(i, list) else [i])]
    shown, number = [], 0
    for i in drawn:
        if i is None:
            shown.append(None)
        elif isinstance(i, list):
            shown.append({"list": [store(f"{name}/in{number + k}", x) for k, x in enumerate(i)]})
        else:
            shown.append(store(f"{name}/in{number}", i))
        number += len(i) if isinstance(i, list) else 1

    outputs = function(*drawn, **{k: DTYPES[v] if k == "dtype" else v for k, v in attrs.items()})
    outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    out_keys = [store(f"{name}/out{k}", x) for k, x in enumerate(outputs)]
    used = [k for k, x in enumerate(outputs) if x.requires_grad and k not in unused]
    grads = {k: torch.randn(outputs[k].shape, generator=generator, dtype=F64).to(outputs[k].dtype) for k in used}
    wanted = [n for n, x in enumerate(flat) if x is not None and x.requires_grad]
    found = {}
    if used:
        results = torch.autograd.grad([outputs[k] for k in used], [flat[n] for n in wanted],
                                      [grads[k] for k in used], allow_unused=True)
        found = {n: g for n, g in zip(wanted, results) if g is not None}
    entry = {"op": op, "sample": name, "inputs": shown, "attrs": attrs, "outputs": out_keys,
             "grad_outputs": [store(f"{name}/gout{k}", grads[k]) if k in grads else None for k in range(len(outputs))],
             "grad_inputs": [store(f"{name}/gin{n}", found[n]) if n in found else None for n in range(len(flat))]}
    entries.append(entry | ({"note": note} if note else {}))


def pointwise():
    for op in ("add", "sub"):
        f = getattr(torch, op)
        sample(op, f, t(5, 7), t(5, 7), alpha=1.0)
        sample(op, f, t(3, 1, 5), t(4, 1), alpha=2.5)
        sample(op, f, t(3, 5), t(), alpha=-1.0)
        sample(op, f, t(1), t(2, 3, 1), alpha=1.0)
        sample(op, f, t(0, 3), t(1, 3), alpha=1.0)
        sample(op, f, ints(-9, 9, 3, 5), ints(-9, 9, 5), alpha=2)
        sample(op, f, t(3, 5, dtype=F32), t(5, dtype=F32), alpha=0.5)
        sample(op, f, t(3, 5, dtype=BF16), t(3, 1, dtype=BF16), alpha=1.0)
    for op, second in dict(mul=t, div=nonzero, maximum=t, minimum=t).items():
        f = getattr(torch, op)
        sample(op, f, t(5, 7), second(5, 7))
        sample(op, f, t(3, 1, 5), second(4, 1))
        sample(op, f, t(), second(3, 5))
        sample(op, f, t(2, 3, 1), second(1))
        sample(op, f, t(3, 0), second(1))
        sample(op, f, t(3, 5, dtype=F32), second(5, dtype=F32))
        sample(op, f, t(3, 5, dtype=BF16), second(3, 1, dtype=BF16))
        if op != "div":
            sample(op, f, ints(-9, 9, 3, 5), ints(-9, 9, 3, 1))
    for op in ("maximum", "minimum"):
        sample(op, getattr(torch, op), given([1.0, 2.0, 3.0]), given([1.0, 3.0, 3.0]),
               note="ties: each operand has half of the gradient")

    for exponent in (2.0, 3.0, 0.5, -1.0, -2.5, 1.0):
        sample("pow_scalar", torch.pow, positive(3, 5), exponent=exponent)
    sample("pow_scalar", torch.pow, nonzero(2, 7), exponent=3.0, note="negative base, whole exponent")
    sample("pow_scalar", torch.pow, t(4), exponent=0.0)
    sample("pow_scalar", torch.pow, positive(7, dtype=F32), exponent=1.5)
    for op, f in dict(add_scalar=torch.add, mul_scalar=torch.mul).items():
        g = lambda x, value, f=f: f(x, value)
        sample(op, g, t(3, 5), value=2.5)
        sample(op, g, t(), value=-0.25)
        sample(op, g, t(2, 1, 7), value=0.0)
        sample(op, g, t(0, 4), value=1.0)
        sample(op, g, ints(-9, 9, 5), value=3)
        sample(op, g, t(3, 5, dtype=F32), value=0.1)
        sample(op, g, t(3, 5, dtype=BF16), value=0.1)

    unary = dict(neg=t, abs=t, exp=t, log=positive, sqrt=positive, rsqrt=positive, square=t, reciprocal=nonzero, sin=t,
                 cos=t, tanh=t, sigmoid=t, relu=t, silu=t)
    for op, draw in unary.items():
        f = F.silu if op == "silu" else getattr(torch, op)
        sample(op, f, draw(3, 5))
        sample(op, f, draw())
        sample(op, f, draw(2, 1, 7))
        sample(op, f, draw(0, 3))
        sample(op, f, draw(37, dtype=F32))
        sample(op, f, draw(3, 5, dtype=BF16))
    for op in ("sin", "cos", "tanh", "sigmoid", "silu"):
        f = F.silu if op == "silu" else getattr(torch, op)
        sample(op, f, scaled(20.0, 4, 5), note="large arguments")
        sample(op, f, scaled(20.0, 4, 5, dtype=F32), note="large arguments")
    for op in ("abs", "relu"):
        sample(op, getattr(torch, op), given([-1.0, 0.0, 2.0]), note="the gradient at 0 is 0")
    sample("neg", torch.neg, ints(-9, 9, 5))
    sample("abs", torch.abs, ints(-9, 9, 5))
    gelu = lambda x, tanh: F.gelu(x, approximate="tanh" if tanh else "none")
    for tanh in (False, True):
        sample("gelu", gelu, t(3, 5), tanh=tanh)
        sample("gelu", gelu, scaled(4.0, 2, 1, 7), tanh=tanh)
        sample("gelu", gelu, t(37, dtype=F32), tanh=tanh)
        sample("gelu", gelu, t(3, 5, dtype=BF16), tanh=tanh)
        sample("gelu", gelu, t(0, 3), tanh=tanh)
    sample("clamp", torch.clamp, t(5, 7), min=-0.5, max=0.75)
    sample("clamp", torch.clamp, t(), min=0.0, max=1.0)
    sample("clamp", torch.clamp, t(3, 1), min=-1e9, max=0.0)
    sample("clamp", torch.clamp, t(0), min=-1.0, max=1.0)
    sample("clamp", torch.clamp, given([-1.0, -0.5, 0.0, 0.5, 1.0]), min=-0.5, max=0.5,
           note="the gradient at the bounds themselves is 0")
    sample("clamp", torch.clamp, t(3, 5, dtype=F32), min=-0.5, max=0.5)
    sample("clamp", torch.clamp, ints(-9, 9, 7), min=-3, max=4)

    sample("where", torch.where, mask(3, 5), t(3, 5), t(3, 5))
    sample("where", torch.where, mask(3, 1), t(5), t(2, 3, 5))
    sample("where", torch.where, mask(2, 3, 5), t(), t(5))
    sample("where", torch.where, mask(), t(3, 1), t(1, 4))
    sample("where", torch.where, mask(0, 5), t(0, 5), t(5))
    sample("where", torch.where, mask(3, 5), ints(-9, 9, 3, 5), ints(-9, 9, 5))
    sample("where", torch.where, mask(3, 5), t(3, 5, dtype=F32), t(3, 1, dtype=F32))
    sample("where", torch.where, mask(3, 5), t(3, 5, dtype=BF16), t(5, dtype=BF16))
    for op in ("eq", "ne", "lt", "le", "gt", "ge"):
        f = getattr(torch, op)
        sample(op, f, ints(0, 3, 5, 7), ints(0, 3, 5, 7))
        sample(op, f, ints(0, 3, 3, 1, 5), ints(0, 3, 4, 1))
        sample(op, f, ints(0, 3, 3, 5, dtype=F64), ints(0, 3, 5, dtype=F64))
        sample(op, f, ints(0, 3, 3, 5, dtype=F32), ints(0, 3, dtype=F32))
        sample(op, f, ints(0, 3, 3, 5, dtype=BF16), ints(0, 3, 3, 1, dtype=BF16))
        sample(op, f, t(0, 5), t(5))
        sample(op, f, ints(0, 3, 7, dtype=I32), ints(0, 3, 7, dtype=I32))
        scalar = lambda x, value, f=f: f(x, value)
        sample(f"{op}_scalar", scalar, ints(0, 3, 5, 7), value=1.0)
        sample(f"{op}_scalar", scalar, ints(0, 3, 2, 3, 4, dtype=F64), value=2.0)
        sample(f"{op}_scalar", scalar, given([0.1, 0.3, -0.1], F32), value=0.1)
        sample(f"{op}_scalar", scalar, given([0.1, 0.3, -0.1, math.nan], BF16), value=0.1, note="the number is rounded to bf16")
        sample(f"{op}_scalar", scalar, ints(0, 3, 7, dtype=I32), value=-1.0)
        sample(f"{op}_scalar", scalar, t(0, 5), value=0.5)
    cast = lambda x, dtype: x.to(dtype)
    for source, target in (("f64", "f32"), ("f64", "bf16"), ("f64", "f16"), ("f32", "f64"), ("f32", "bf16"),
                           ("bf16", "f32"), ("f64", "f64"), ("f64", "i64"), ("f32", "i32"), ("bf16", "i64")):
        sample("cast", cast, scaled(3.0, 3, 5, dtype=DTYPES[source]), dtype=target)
    for source, target in (("i64", "f64"), ("i64", "f32"), ("i32", "i64"), ("i64", "i32"), ("u8", "i64"), ("i64", "u8"),
                           ("i64", "bool"), ("u8", "f32")):
        sample("cast", cast, ints(0, 4, 7, dtype=DTYPES[source]), dtype=target)
    sample("cast", cast, mask(3, 5), dtype="f32")
    sample("cast", cast, mask(7), dtype="i64")
    sample("cast", cast, given([0.0, -0.0, 0.5, -2.0]), dtype="bool")
    sample("cast", cast, t(0, 3), dtype="f32")
    sample("cast", cast, given([1 + 2 ** -8, 1 + 3 * 2 ** -8, -1 - 2 ** -8, 1 + 2 ** -8 + 2 ** -20], F32), dtype="bf16",
           note="ties round to even")
    masked_fill = lambda x, m, value: torch.masked_fill(x, m, value)
    sample("masked_fill", masked_fill, t(3, 5), mask(3, 5), value=-1e9)
    sample("masked_fill", masked_fill, t(2, 3, 5), mask(3, 1), value=0.0)
    sample("masked_fill", masked_fill, t(3, 5), mask(), value=2.5)
    sample("masked_fill", masked_fill, t(0, 5), mask(5), value=1.0)
    sample("masked_fill", masked_fill, ints(-9, 9, 3, 5), mask(3, 5), value=7)
    sample("masked_fill", masked_fill, t(3, 5, dtype=F32), mask(1, 5), value=-1.5)
    sample("masked_fill", masked_fill, t(3, 5, dtype=BF16), mask(3, 5), value=-1.5)


def reductions():
    def over(f):
        return lambda x, dims, keepdim: f(x, dim=dims, keepdim=keepdim)

    for op in ("sum", "mean", "amax", "amin", "logsumexp"):
        f = over(getattr(torch, op))
        sample(op, f, t(5, 7), dims=[0], keepdim=False)
        sample(op, f, t(5, 7), dims=[-1], keepdim=True)
        sample(op, f, t(3, 4, 5), dims=[0, 2], keepdim=False)
        sample(op, f, t(3, 4, 5), dims=[-2, 0], keepdim=True)
        sample(op, f, t(3, 4, 5), dims=[0, 1, 2], keepdim=False)
        sample(op, f, t(3, 1, 5), dims=[1], keepdim=False)
        sample(op, f, t(0, 5), dims=[1], keepdim=False)
        sample(op, f, t(5, 37, dtype=F32), dims=[1], keepdim=False)
        sample(op, f, t(5, 37, dtype=BF16), dims=[1], keepdim=False)
    sample("sum", over(torch.sum), t(0, 5), dims=[0], keepdim=False, note="the sum of nothing is 0")
    sample("sum", over(torch.sum), ints(-9, 9, 3, 5), dims=[1], keepdim=False)
    for op in ("amax", "amin"):
        sample(op, over(getattr(torch, op)), given([[1.0, 3.0, 3.0, 1.0], [2.0, 2.0, 2.0, 2.0]]), dims=[1],
               keepdim=False, note="ties share the gradient equally")
    sample("logsumexp", over(torch.logsumexp), scaled(500.0, 3, 5), dims=[1], keepdim=False, note="large arguments")
    argmax = lambda x, dim, keepdim: torch.argmax(x, dim=dim, keepdim=keepdim)
    for shape, dim, keepdim, dtype in (((5, 7), 0, False, F64), ((5, 7), -1, True, F64), ((3, 4, 5), 1, False, F64),
                                       ((3, 1, 5), 1, False, F64), ((0, 5), 1, False, F64), ((5, 7), 1, False, F32)):
        sample("argmax", argmax, t(*shape, dtype=dtype), dim=dim, keepdim=keepdim)
    for shape, dtype in (((5, 7), F64), ((), F64), ((3, 1, 5), F64), ((0, 3), F64), ((5, 37), F32), ((3, 5), BF16)):
        sample("vector_norm", lambda x: torch.linalg.vector_norm(x), t(*shape, dtype=dtype))
    sample("vector_norm", lambda x: torch.linalg.vector_norm(x), given([0.0, 0.0, 0.0]),
           note="the gradient of a zero vector is 0")
    for shape, dim, dtype in (((5, 7), 0, F64), ((5, 7), -1, F64), ((3, 4, 5), 1, F64), ((3, 1), 1, F64),
                              ((0, 5), 0, F64), ((5, 37), 1, F32)):
        sample("cumsum", torch.cumsum, t(*shape, dtype=dtype), dim=dim)
    sample("cumsum", torch.cumsum, ints(-9, 9, 3, 5), dim=1)

    def prod(x, dims, keepdim):
        for dim in sorted((d % x.dim() for d in dims), reverse=True):
            x = x.prod(dim, keepdim)
        return x

    for shape, dim, keepdim, dtype in (((5, 7), 0, False, F64), ((5, 7), -1, True, F64), ((3, 4, 5), 1, False, F64),
                                       ((3, 1), 1, False, F64), ((5, 7), 1, False, F32)):
        sample("prod", prod, t(*shape, dtype=dtype), dims=[dim], keepdim=keepdim)
    sample("prod", prod, t(0, 5), dims=[0], keepdim=False, note="the product of nothing is 1")
    sample("prod", prod, given([[1.5, 0.0, 2.0], [0.0, 3.0, 0.0], [2.0, -1.0, 4.0]]), dims=[1], keepdim=False,
           note="zeros")
    for shape, dims, keepdim in (((3, 4, 5), [0, 2], False), ((2, 3, 4), [-2, 0], True), ((2, 3, 4), [1, 2], False),
                                 ((2, 3), [0, 1], False)):
        sample("prod", prod, t(*shape), dims=dims, keepdim=keepdim)
    sample("prod", prod, given([[[1.5, 0.0], [2.0, 3.0]], [[0.5, -2.0], [0.0, 3.0]]]), dims=[0, 2], keepdim=False, note="zeros")
    sample("prod", prod, ints(-9, 9, 2, 3), dims=[0, 1], keepdim=True)
    var = lambda x, dims, keepdim, correction: torch.var(x, dim=dims, keepdim=keepdim, correction=correction)
    sample("var", var, t(5, 7), dims=[0], keepdim=False, correction=1)
    sample("var", var, t(5, 7), dims=[-1], keepdim=True, correction=0)
    sample("var", var, t(3, 4, 5), dims=[0, 2], keepdim=False, correction=1)
    sample("var", var, t(3, 4, 5), dims=[0, 1, 2], keepdim=False, correction=0)
    sample("var", var, t(3, 4, 5), dims=[-1, 1], keepdim=True, correction=2)
    sample("var", var, t(3, 1, 5), dims=[1], keepdim=False, correction=0)
    sample("var", var, t(5, 37, dtype=F32), dims=[1], keepdim=False, correction=1)


def products():
    for n, k, m, dtype in ((5, 7, 3, F64), (1, 7, 3, F64), (5, 1, 3, F64), (5, 7, 1, F64), (0, 7, 3, F64), (5, 0, 3, F64),
                           (17, 33, 9, F32), (5, 7, 3, BF16)):
        sample("mm", torch.mm, t(n, k, dtype=dtype), t(k, m, dtype=dtype))
    for b, n, k, m, dtype in ((2, 5, 7, 3, F64), (3, 1, 7, 1, F64), (1, 5, 1, 3, F64), (0, 5, 7, 3, F64),
                              (2, 5, 0, 3, F64), (3, 9, 17, 5, F32), (2, 5, 7, 3, BF16)):
        sample("bmm", torch.bmm, t(b, n, k, dtype=dtype), t(b, k, m, dtype=dtype))
    large = [[2 ** 62, -3], [5, 2 ** 40 + 1]]
    for op, shapes in dict(mm=((5, 7), (7, 3)), bmm=((2, 5, 7), (2, 7, 3))).items():
        f = getattr(torch, op)
        for kind, low, high in ((I64, -9, 9), (I32, -9, 9), (U8, 0, 255)):
            sample(op, f, ints(low, high, *shapes[0], dtype=kind), ints(low, high, *shapes[1], dtype=kind))
    sample("mm", torch.mm, given(large, I64), given(large, I64), note="integers wrap")
    sample("mm", torch.mm, ints(-2 ** 30, 2 ** 30, 3, 4, dtype=I32), ints(-2 ** 30, 2 ** 30, 4, 2, dtype=I32),
           note="integers wrap")
    for a, b in (((5, 7), (7, 3)), ((7,), (7,)), ((5, 7), (7,)), ((7,), (7, 3)), ((2, 5, 7), (7, 3)), ((5, 7), (2, 7, 3)),
                 ((4, 1, 5, 7), (3, 7, 2)), ((2, 5, 7), (7,)), ((7,), (2, 7, 3)), ((2, 0, 7), (7, 3))):
        sample("matmul", torch.matmul, t(*a), t(*b))
    sample("matmul", torch.matmul, t(2, 5, 7, dtype=F32), t(2, 7, 3, dtype=F32))
    sample("matmul", torch.matmul, t(2, 5, 7, dtype=BF16), t(7, 3, dtype=BF16))
    sample("matmul", torch.matmul, ints(-9, 9, 2, 5, 7), ints(-9, 9, 7, 3))
    for x, out, bias, dtype in (((5, 7), 3, True, F64), ((5, 7), 3, False, F64), ((2, 5, 7), 3, True, F64),
                                ((2, 3, 1, 7), 4, False, F64), ((7,), 3, True, F64), ((0, 7), 3, True, F64),
                                ((5, 1), 1, True, F64), ((5, 33), 9, True, F32), ((2, 5, 7), 3, True, BF16)):
        sample("linear", F.linear, t(*x, dtype=dtype), t(out, x[-1], dtype=dtype), t(out, dtype=dtype) if bias else None)
    for bias, n, k, m, dtype in (((5, 3), 5, 7, 3, F64), ((3,), 5, 7, 3, F64), ((5, 1), 5, 7, 3, F64), ((), 5, 7, 3, F64),
                                 ((3,), 0, 7, 3, F64), ((3,), 5, 7, 3, F32)):
        sample("addmm", torch.addmm, t(*bias, dtype=dtype), t(n, k, dtype=dtype), t(k, m, dtype=dtype), beta=1.0,
               alpha=1.0)


def views():
    for op in ("view", "reshape"):
        f = lambda x, shape, op=op: getattr(x, op)(shape)
        for shape, new in (((3, 4), [12]), ((12,), [2, 3, 2]), ((2, 3, 5), [6, -1]), ((2, 3, 5), [-1]), ((6,), [1, 6, 1]),
                           ((0, 3), [3, 0]), ((1,), []), ((), [1, 1])):
            sample(op, f, t(*shape), shape=new)
        sample(op, f, ints(-9, 9, 2, 3), shape=[3, 2])
        sample(op, f, t(2, 3, dtype=BF16), shape=[6])
    transpose = lambda x, dim0, dim1: x.transpose(dim0, dim1)
    for shape, a, b in (((3, 5), 0, 1), ((2, 3, 5), -1, 0), ((2, 3, 5), 1, 2), ((2, 3, 5), 1, 1), ((1, 4), 0, -1),
                        ((0, 3), 0, 1), ((2, 3, 4, 5), -3, -2)):
        sample("transpose", transpose, t(*shape), dim0=a, dim1=b)
    for shape, dims in (((2, 3, 5), [2, 0, 1]), ((2, 3, 5), [0, -1, 1]), ((2, 3), [0, 1]), ((2, 1, 3, 5), [3, 1, 0, 2]),
                        ((3, 0, 2), [1, 2, 0]), ((), [])):
        sample("permute", lambda x, dims: x.permute(dims), t(*shape), dims=dims)
    for shape, new in (((3, 1), [3, 5]), ((5,), [2, 3, 5]), ((1, 3, 1), [4, -1, 2]), ((), [2, 3]), ((3, 5), [3, 5]),
                       ((1, 3), [0, 3]), ((2, 1, 3), [2, 4, 3])):
        sample("expand", lambda x, shape: x.expand(shape), t(*shape), shape=new)
    for shape, dim in (((3, 1, 5), 1), ((3, 1, 5), 0), ((1, 3), -2), ((1,), 0), ((3, 1), -1), ((0, 1), 1)):
        sample("squeeze", lambda x, dim: x.squeeze(dim), t(*shape), dim=dim)
    for shape, dim in (((3, 5), 0), ((3, 5), -1), ((3, 5), 1), ((), 0), ((0, 3), -2), ((3, 5), 2)):
        sample("unsqueeze", lambda x, dim: x.unsqueeze(dim), t(*shape), dim=dim)
    narrow = lambda x, dim, start, length: x.narrow(dim, start, length)
    for shape, dim, start, length in (((5, 7), 0, 1, 3), ((5, 7), -1, 2, 5), ((2, 3, 5), 1, 0, 3), ((2, 3, 5), 1, 2, 1),
                                      ((5,), 0, 5, 0), ((3, 0), 0, 1, 2), ((5, 7), 1, -3, 2)):
        sample("narrow", narrow, t(*shape), dim=dim, start=start, length=length)
    for shape, dim, index in (((5, 7), 0, 2), ((5, 7), -1, -1), ((2, 3, 5), 1, 0), ((5,), 0, -5), ((2, 1, 3), 1, 0),
                              ((3, 0), 0, 1)):
        sample("select", lambda x, dim, index: x.select(dim, index), t(*shape), dim=dim, index=index)

    def slice_(x, dim, start, end, step):
        return x[(slice(None),) * (dim % x.dim()) + (slice(start, end, step),)]

    for shape, dim, start, end, step in (((5, 7), 0, 1, 4, 1), ((5, 7), -1, 0, 7, 2), ((5, 7), 1, -4, -1, 1),
                                         ((2, 9, 3), 1, 1, 100, 3), ((5,), 0, 3, 2, 1), ((3, 0), 1, 0, 5, 1),
                                         ((5,), 0, -100, 3, 2)):
        sample("slice", slice_, t(*shape), dim=dim, start=start, end=end, step=step)
    flatten = lambda x, start_dim, end_dim: x.flatten(start_dim, end_dim)
    for shape, a, b in (((2, 3, 5), 0, -1), ((2, 3, 5), 1, 2), ((2, 3, 5), 0, 1), ((2, 1, 3, 5), -3, -2), ((), 0, -1),
                        ((3, 5), 1, 1), ((2, 0, 3), 0, 1)):
        sample("flatten", flatten, t(*shape), start_dim=a, end_dim=b)
    cat = lambda xs, dim: torch.cat(xs, dim)
    sample("cat", cat, [t(3, 5), t(2, 5)], dim=0)
    sample("cat", cat, [t(3, 5), t(3, 1), t(3, 2)], dim=-1)
    sample("cat", cat, [t(2, 3, 5), t(2, 4, 5)], dim=1)
    sample("cat", cat, [t(3, 5)], dim=0)
    sample("cat", cat, [t(0, 5), t(2, 5), t(0, 5)], dim=0)
    sample("cat", cat, [ints(-9, 9, 3), ints(-9, 9, 2)], dim=0)
    sample("cat", cat, [t(3, 5, dtype=BF16), t(2, 5, dtype=BF16)], dim=0)
    stack = lambda xs, dim: torch.stack(xs, dim)
    sample("stack", stack, [t(3, 5), t(3, 5)], dim=0)
    sample("stack", stack, [t(3, 5), t(3, 5), t(3, 5)], dim=-1)
    sample("stack", stack, [t(3, 5), t(3, 5)], dim=1)
    sample("stack", stack, [t(), t()], dim=0)
    sample("stack", stack, [t(4)], dim=-2)
    sample("stack", stack, [t(0, 3), t(0, 3)], dim=1)
    sample("stack", stack, [ints(-9, 9, 3), ints(-9, 9, 3)], dim=0)
    split = lambda x, size, dim: torch.split(x, size, dim)
    sample("split", split, t(6, 5), size=2, dim=0)
    sample("split", split, t(3, 7), size=3, dim=-1)
    sample("split", split, t(2, 5, 3), size=4, dim=1)
    sample("split", split, t(3, 5), size=8, dim=0)
    sample("split", split, t(3, 7), size=3, dim=1, unused=(1,), note="one output has no gradient")
    sample("split", split, t(0, 3), size=1, dim=1)
    split_with_sizes = lambda x, sizes, dim: torch.split(x, sizes, dim)
    sample("split_with_sizes", split_with_sizes, t(6, 5), sizes=[1, 3, 2], dim=0)
    sample("split_with_sizes", split_with_sizes, t(3, 7), sizes=[4, 0, 3], dim=-1)
    sample("split_with_sizes", split_with_sizes, t(2, 5, 3), sizes=[5], dim=1)
    sample("split_with_sizes", split_with_sizes, t(3, 7), sizes=[2, 2, 3], dim=1, unused=(1,), note="one output has no gradient")
    sample("split_with_sizes", split_with_sizes, ints(-9, 9, 4, 3), sizes=[1, 3], dim=0)
    for shape in ((3, 5), (), (2, 1, 3), (0, 3)):
        sample("contiguous", lambda x: x.contiguous(), t(*shape))
    sample("contiguous", lambda x: x.contiguous(), t(7, dtype=F32))
    sample("contiguous", lambda x: x.contiguous(), ints(-9, 9, 2, 3))


def indexing():
    embedding = lambda weight, indices: F.embedding(indices, weight)
    for vocab, width, shape, dtype, kind in ((7, 5, (4,), F64, I64), (3, 5, (2, 7), F64, I64), (7, 1, (2, 3, 2), F64, I64),
                                             (7, 5, (), F64, I64), (7, 5, (0,), F64, I64), (7, 5, (4,), F64, I32),
                                             (11, 9, (3, 8), F32, I64), (3, 5, (7,), BF16, I64)):
        sample("embedding", embedding, t(vocab, width, dtype=dtype), ints(0, vocab, *shape, dtype=kind))
    gather = lambda x, index, dim: torch.gather(x, dim, index)
    for shape, index, dim, dtype in (((5, 7), (5, 3), 1, F64), ((5, 7), (9, 7), 0, F64), ((5, 7), (2, 4), -1, F64),
                                     ((2, 3, 5), (2, 4, 5), 1, F64), ((7,), (4,), 0, F64), ((5, 7), (5, 0), 1, F64),
                                     ((5, 1), (5, 3), 1, F64), ((5, 7), (5, 3), 1, F32)):
        sample("gather", gather, t(*shape, dtype=dtype), ints(0, shape[dim], *index), dim=dim)
    sample("gather", gather, ints(-9, 9, 5, 7), ints(0, 7, 5, 3), dim=1)
    index_select = lambda x, index, dim: torch.index_select(x, dim, index)
    for shape, count, dim, dtype in (((5, 7), 3, 0, F64), ((5, 7), 9, -1, F64), ((2, 3, 5), 4, 1, F64), ((7,), 1, 0, F64),
                                     ((5, 7), 0, 0, F64), ((5, 1), 3, 1, F64), ((5, 7), 3, 0, F32)):
        sample("index_select", index_select, t(*shape, dtype=dtype), ints(0, shape[dim], count), dim=dim)
    scatter_add = lambda x, index, src, dim: torch.scatter_add(x, dim, index, src)
    for shape, index, dim, dtype in (((5, 7), (5, 3), 1, F64), ((3, 7), (9, 7), 0, F64), ((5, 7), (2, 4), -1, F64),
                                     ((2, 3, 5), (2, 4, 5), 1, F64), ((4,), (9,), 0, F64), ((5, 7), (5, 0), 1, F64),
                                     ((5, 1), (5, 3), 1, F64), ((5, 7), (5, 3), 1, F32)):
        sample("scatter_add", scatter_add, t(*shape, dtype=dtype), ints(0, shape[dim], *index), t(*index, dtype=dtype),
               dim=dim)
    for op in ("tril", "triu"):
        f = getattr(torch, op)
        for shape, diagonal in (((5, 7), 0), ((7, 5), 1), ((5, 5), -2), ((2, 3, 4), -1), ((1, 4), 2), ((3, 3), 10),
                                ((0, 3), 0)):
            sample(op, f, t(*shape), diagonal=diagonal)
        sample(op, f, ints(-9, 9, 3, 4), diagonal=0)
    for shape, classes in (((5,), 7), ((2, 3), 4), ((), 3), ((2, 1, 3), 1), ((0,), 5), ((3,), 2)):
        sample("one_hot", lambda x, num_classes: F.one_hot(x, num_classes), ints(0, classes, *shape),
               num_classes=classes)


PLAIN_ROTARY = dict(scaling="none", factor=1.0, original_positions=0.0, low=1.0, high=4.0, amplitude=1.0, whole_dims=True)


def rotary(x, theta, offset, **scaling):
    """x [B, T, H, D]; the first half of D is turned with the second, at positions offset, offset + 1, ..."""
    half = x.shape[-1] // 2
    inverse = 1.0 / theta ** (torch.arange(0, half, dtype=x.dtype) / half)
    angles = torch.outer(torch.arange(offset, offset + x.shape[1], dtype=x.dtype), inverse)[:, None]
    cos, sin = angles.cos(), angles.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def causal_attention(q, k, v, documents, scale, window, softcap):
    """q [B, Tq, H, D], k and v [B, Tk, KV, D]: head h uses head h // (H / KV), query i sees keys <= i + Tk - Tq.
    bf16 operands are computed with in f32."""
    if q.dtype == BF16:
        return causal_attention(q.float(), k.float(), v.float(), documents, scale, window, softcap).to(BF16)
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * (scale or 1 / math.sqrt(q.shape[-1]))
    hidden = torch.ones(scores.shape[-2:], dtype=BOOL).triu(1 + scores.shape[-1] - scores.shape[-2])
    return torch.einsum("bhij,bjhd->bihd", scores.masked_fill(hidden, -math.inf).softmax(-1), v)


def network():
    for op, f in dict(softmax=torch.softmax, log_softmax=torch.log_softmax).items():
        sample(op, f, t(5, 7), dim=1)
        sample(op, f, t(5, 7), dim=-2)
        sample(op, f, t(2, 3, 5), dim=1)
        sample(op, f, t(3, 1), dim=1)
        sample(op, f, t(0, 5), dim=1)
        sample(op, f, scaled(300.0, 3, 5), dim=1, note="large arguments")
        sample(op, f, t(5, 37, dtype=F32), dim=-1)
        sample(op, f, t(5, 7, dtype=BF16), dim=-1)
    sample("softmax", torch.softmax, given([[0.5, -math.inf, 1.5], [-math.inf, 2.0, -math.inf]]), dim=1,
           note="some inputs are minus infinity")
    layer_norm = lambda x, weight, bias, eps: F.layer_norm(x, x.shape[-1:], weight, bias, eps)
    rms_norm = lambda x, weight, eps: F.rms_norm(x, x.shape[-1:], weight, eps)
    for shape, eps, dtype in (((5, 7), 1e-5, F64), ((2, 3, 9), 1e-5, F64), ((7,), 1e-3, F64), ((2, 1, 5), 0.5, F64),
                              ((0, 5), 1e-5, F64), ((5, 37), 1e-6, F32), ((5, 7), 1e-5, BF16)):
        w = lambda: t(shape[-1], dtype=dtype)
        sample("layer_norm", layer_norm, t(*shape, dtype=dtype), w(), w(), eps=eps)
        sample("rms_norm", rms_norm, t(*shape, dtype=dtype), w(), eps=eps)
    sample("layer_norm", layer_norm, t(5, 7), t(7), None, eps=1e-5)
    sample("layer_norm", layer_norm, t(5, 7), None, None, eps=1e-5)
    sample("rms_norm", rms_norm, t(5, 7), None, eps=1e-5)
    sample("rms_norm", rms_norm, scaled(1e-3, 5, 7), t(7), eps=1e-5, note="eps matters")
    for shape, dtype in (((5, 7), F64), ((2, 3, 1), F64), ((), F64), ((0, 7), F64), ((5, 37), F32), ((5, 7), BF16)):
        sample("swiglu", lambda gate, up: F.silu(gate) * up, t(*shape, dtype=dtype), t(*shape, dtype=dtype))
    for shape, theta, offset, dtype in (((2, 5, 3, 4), 10000.0, 0, F64), ((1, 7, 2, 10), 10000.0, 3, F64),
                                        ((2, 1, 1, 2), 10000.0, 9, F64), ((1, 5, 2, 6), 500.0, 0, F64),
                                        ((2, 0, 3, 4), 10000.0, 0, F64), ((1, 3, 2, 8), 10000.0, 100, F64),
                                        ((2, 9, 3, 10), 10000.0, 2, F32)):
        sample("rotary", rotary, t(*shape, dtype=dtype), theta=theta, offset=offset,
               **PLAIN_ROTARY)
    for batch, tq, tk, heads, kv, width, scale, dtype, *value in (
            (2, 5, 5, 4, 4, 3, 0.0, F64), (1, 7, 7, 4, 2, 5, 0.0, F64), (2, 5, 5, 6, 2, 3, 0.25, F64),
            (1, 1, 6, 3, 1, 4, 0.0, F64), (2, 3, 8, 4, 2, 3, 0.0, F64), (1, 1, 1, 1, 1, 1, 1.0, F64),
            (0, 3, 3, 2, 1, 4, 0.0, F64), (1, 33, 33, 2, 1, 10, 0.0, F32), (2, 9, 9, 4, 2, 8, 0.0, F32),
            (1, 5, 5, 2, 1, 4, 0.0, BF16), (2, 3, 4, 2, 1, 3, 0.0, F64, 2), (1, 2, 2, 2, 2, 1, 0.0, F64, 4),
            (1, 1, 5, 4, 2, 3, 0.0, F64, 5), (1, 66, 70, 2, 1, 4, 0.0, F32, 6)):
        sample("causal_attention", causal_attention, t(batch, tq, heads, width, dtype=dtype),
               t(batch, tk, kv, width, dtype=dtype), t(batch, tk, kv, *(value or [width]), dtype=dtype), None, scale=scale,
               window=0, softcap=0.0)
    for op, reduction in dict(cross_entropy="sum", cross_entropy_rows="none").items():
        f = lambda x, y, ignore_index, r=reduction: F.cross_entropy(x, y, ignore_index=ignore_index, reduction=r)
        sample(op, f, t(5, 7), ints(0, 7, 5), ignore_index=-100)
        sample(op, f, t(9, 3), ints(0, 3, 9), ignore_index=1)
        sample(op, f, t(4, 7), given([2, -100, 6, -100], I64), ignore_index=-100)
        sample(op, f, t(3, 5), given([-1, -1, -1], I64), ignore_index=-1, note="every row is ignored")
        sample(op, f, t(1, 1), given([0], I64), ignore_index=-100)
        sample(op, f, t(0, 5), ints(0, 5, 0), ignore_index=-100)
        sample(op, f, scaled(200.0, 5, 7), ints(0, 7, 5), ignore_index=-100, note="large arguments")
        sample(op, f, t(5, 101, dtype=F32), ints(0, 101, 5), ignore_index=-100)
        sample(op, f, t(5, 7, dtype=BF16), ints(0, 7, 5), ignore_index=-100)
    for shape, dtype in (((5, 7), F64), ((), F64), ((2, 1, 3), F64), ((0, 3), F64), ((37,), F32), ((5, 7), BF16)):
        sample("mse_loss", lambda x, y: F.mse_loss(x, y, reduction="sum"), t(*shape, dtype=dtype), t(*shape, dtype=dtype))


def main():
    for part in (pointwise, reductions, products, views, indexing, network):
        part()
    write("operators")


def write(name):
    """What has been sampled so far, as data/NAME.{json,safetensors}; the tests read all *operators.json."""
    write_tensors(DATA / f"{name}.safetensors", tensors)
    write_json(DATA / f"{name}.json", entries)
    print(len(entries), "samples of", len(counts), "operators,", len(tensors), "tensors")


if __name__ == "__main__":
    main()
