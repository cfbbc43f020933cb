"""50 steps of every optimizer on a noisy quadratic: data/{optimizer,adafactor,muon}_curves.json.

A case: {"name", "rule", "options" (ours), "lr", "schedule", "weight_decay", "losses": one before each step, "final": the
values of each parameter}. All in float64. Element i of a parameter begins as sin(1 + i), its target is cos(2 i), its
weight a = 1 + sin(i) / 2; the loss is the sum of a (p - target)^2 / 2, and the gradient of step t (from 1) has the noise
0.3 sin(0.37 i + 1.3 t). With a schedule, the learning rate of step t is lr (1 - (t - 1) / 100).
"""

import torch

from common import DATA, write_json

torch.set_default_dtype(torch.float64)  # torch keeps NAdam's products and ASGD's rates in the default type
STEPS = 50
SHAPES = [(6, 5), (7,), (3, 2, 4), (1, 5), (5, 8)]


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of Chen et al., Symbolic Discovery of Optimization Algorithms, 2023."""

    def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0, maximize=False):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay, maximize=maximize))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                g = -p.grad if group["maximize"] else p.grad
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                update = torch.sign(b1 * m + (1 - b1) * g)
                p -= group["lr"] * (update + group["weight_decay"] * p)
                m.copy_(b2 * m + (1 - b2) * g)


class MuonAdamW:
    """torch.optim.Muon for the matrices, also for each one of a stack (three dims), torch.optim.AdamW (betas 0.9 and 0.95)
    for the other parameters. Muon's iterations are in bfloat16; `exact`: in the parameter's type."""

    def __init__(self, params, lr, exact=True, rest_scale=1.0, **options):
        # Matrices of a stack share its memory.
        self.stacked = [(p, [torch.nn.Parameter(one) for one in p.data]) for p in params if p.dim() == 3]
        matrices = [p for p in params if p.dim() == 2] + [one for _, ones in self.stacked for one in ones]
        self.muon = torch.optim.Muon(matrices, lr=lr, **options)
        self.rest = torch.optim.AdamW([p for p in params if p.dim() not in (2, 3)], lr=lr * rest_scale, betas=(0.9, 0.95),
                                      weight_decay=options["weight_decay"])
        self.exact, self.rest_scale = exact, rest_scale
        self.param_groups = self.muon.param_groups

    def step(self):
        self.rest.param_groups[0]["lr"] = self.param_groups[0]["lr"] * self.rest_scale
        for stack, ones in self.stacked:
            for one, gradient in zip(ones, stack.grad):
                one.grad = gradient
        half = torch.bfloat16
        try:
            torch.bfloat16 = torch.float64 if self.exact else half
            self.muon.step()
        finally:
            torch.bfloat16 = half
        self.rest.step()


def case(name, make, lr, weight_decay=0.0, schedule=True, decay_key="weight_decay", rule=None, **options):
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    return dict(name=name, make=make, lr=lr, weight_decay=weight_decay, schedule=schedule, rule=rule or name.split(" ")[0],
                options=options, given=given | ({decay_key: weight_decay} if decay_key else {}))


O = torch.optim
CASES = [
    case("sgd", O.SGD, 0.1),
    case("sgd dampening", O.SGD, 0.1, 0.05, momentum=0.8, dampening=0.3),
    case("sgd nesterov", O.SGD, 0.05, 0.01, momentum=0.9, nesterov=True),
    case("sgd maximize", O.SGD, 0.001, 0.01, momentum=0.9, maximize=True),
    case("adam", O.Adam, 0.05),
    case("adam decay", O.Adam, 0.05, 0.1, betas=[0.8, 0.95], eps=1e-3),
    case("adam amsgrad", O.Adam, 0.1, 0.01, amsgrad=True, betas=[0.9, 0.9]),
    case("adamw", O.AdamW, 0.05, 0.1, betas=[0.9, 0.95]),
    case("adamw amsgrad", O.AdamW, 0.1, 0.1, betas=[0.9, 0.9], amsgrad=True),
    case("adamw maximize", O.AdamW, 0.01, 0.1, betas=[0.9, 0.95], maximize=True),
    case("adagrad", O.Adagrad, 0.3),
    case("adagrad options", O.Adagrad, 0.3, 0.05, lr_decay=0.01, initial_accumulator_value=0.1, eps=1e-3),
    case("adadelta", O.Adadelta, 1.0),
    case("adadelta options", O.Adadelta, 2.0, 0.05, rho=0.8, eps=1e-3),
    case("adamax", O.Adamax, 0.05),
    case("adamax options", O.Adamax, 0.05, 0.1, betas=[0.8, 0.95], eps=1e-3),
    case("nadam", O.NAdam, 0.05),
    case("nadam options", O.NAdam, 0.05, 0.1, betas=[0.8, 0.95], momentum_decay=0.1),
    case("nadam decoupled", O.NAdam, 0.05, 0.1, decoupled_weight_decay=True, maximize=True),
    case("radam", O.RAdam, 0.05),
    case("radam options", O.RAdam, 0.05, 0.1, betas=[0.8, 0.95], eps=1e-3),
    case("radam decoupled", O.RAdam, 0.05, 0.1, decoupled_weight_decay=True),
    case("rmsprop", O.RMSprop, 0.02),
    case("rmsprop momentum", O.RMSprop, 0.01, 0.1, alpha=0.9, momentum=0.8),
    case("rmsprop centered", O.RMSprop, 0.02, alpha=0.9, centered=True, eps=1e-2),
    case("rmsprop both", O.RMSprop, 0.005, 0.05, alpha=0.95, centered=True, momentum=0.9, eps=1e-2),
    case("rprop", O.Rprop, 0.02, decay_key=None),
    case("rprop options", O.Rprop, 0.02, decay_key=None, etas=[0.7, 1.5], step_sizes=[1e-3, 0.3]),
    case("asgd", O.ASGD, 0.1, schedule=False),
    case("asgd options", O.ASGD, 0.1, 0.05, schedule=False, lambd=0.01, alpha=0.5, t0=10),
    case("lion", Lion, 0.02, 0.1),
    case("lion options", Lion, 0.02, 0.1, betas=[0.8, 0.95], maximize=True),
]

# Options of ours, then torch's.
ADAFACTOR = [
    case("adafactor", O.Adafactor, 0.05),
    case("adafactor options", O.Adafactor, 0.1, 0.05, beta2_decay=-0.5, d=2.0, eps=[1e-4, 1e-2]),
    case("adafactor maximize", O.Adafactor, 0.01, 0.05, maximize=True),
]


def muon(name, lr, weight_decay, ours, **torchs):
    return case("muon" + name, MuonAdamW, lr, weight_decay, **ours) | dict(given=torchs | dict(weight_decay=weight_decay))


MUON = [
    muon("", 0.05, 0.1, {}),
    muon(" heavy ball", 0.05, 0.1, dict(nesterov=False, momentum=0.8, ns_steps=3), nesterov=False, momentum=0.8, ns_steps=3),
    muon(" match", 0.05, 0.1, dict(adjust_lr="match_rms_adamw", ns_coefficients=[2.0, -1.5, 0.5]),
         adjust_lr_fn="match_rms_adamw", ns_coefficients=(2.0, -1.5, 0.5)),
    muon(" unclamped", 0.05, 0.0, dict(adjust_lr="spectral_unclamped", fallback=dict(lr_scale=0.5)),
         adjust_lr_fn="spectral_unclamped", rest_scale=0.5),
    muon(" bf16", 0.02, 0.1, dict(compute="bf16"), exact=False),
]


def run(entry):
    double = torch.float64
    index = [torch.arange(torch.Size(shape).numel(), dtype=double).reshape(shape) for shape in SHAPES]
    parameters = [torch.nn.Parameter(torch.sin(1 + i)) for i in index]
    targets, weights = [torch.cos(2 * i) for i in index], [1 + torch.sin(i) / 2 for i in index]
    optimizer = entry["make"](parameters, lr=entry["lr"], **entry["given"])
    losses = []
    for t in range(1, STEPS + 1):
        rate = entry["lr"] * (1 - (t - 1) / 100) if entry["schedule"] else entry["lr"]
        for group in optimizer.param_groups:
            group["lr"] = rate
        losses.append(sum((a * (p - target) ** 2 / 2).sum().item() for p, target, a in zip(parameters, targets, weights)))
        for p, target, a, i in zip(parameters, targets, weights, index):
            p.grad = (a * (p - target) + 0.3 * torch.sin(0.37 * i + 1.3 * t)).detach()
        optimizer.step()
    return {key: entry[key] for key in ("name", "rule", "options", "lr", "schedule", "weight_decay")} | {
        "losses": losses, "final": [p.detach().flatten().tolist() for p in parameters]}


def run_lbfgs(name, steps, lr, **options):
    """A loss that is not quadratic and without noise: the sum of a (p - target)^2 / 2 + (p - target)^4 / 4 and 0.1 times the
    square of the sum of all parameters' elements. One loss for each step, and how often closures were called."""
    index = [torch.arange(torch.Size(shape).numel(), dtype=torch.float64).reshape(shape) for shape in SHAPES]
    parameters = [torch.nn.Parameter(torch.sin(1 + i)) for i in index]
    optimizer = torch.optim.LBFGS(parameters, lr=lr, **options)

    def closure():
        optimizer.zero_grad()
        d = [p - torch.cos(2 * i) for p, i in zip(parameters, index)]
        loss = sum(((1 + torch.sin(i) / 2) * x**2 / 2 + x**4 / 4).sum() for x, i in zip(d, index))
        loss = loss + 0.1 * sum(p.sum() for p in parameters) ** 2
        loss.backward()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(steps)]
    state = optimizer.state[parameters[0]]
    return {"name": name, "lr": lr, "options": {k: v for k, v in options.items() if k != "line_search_fn"},
            "strong_wolfe": "line_search_fn" in options, "losses": losses, "evaluations": state["func_evals"],
            "final": [p.detach().flatten().tolist() for p in parameters]}


if __name__ == "__main__":
    write_json(DATA / "lbfgs_curves.json", [
        run_lbfgs("fixed steps", 12, 0.3, max_iter=4),
        run_lbfgs("short history", 12, 0.3, max_iter=4, history_size=2),
        run_lbfgs("strong wolfe", 6, 1.0, max_iter=4, line_search_fn="strong_wolfe"),
        run_lbfgs("strong wolfe, short", 10, 2.0, max_iter=3, max_eval=4, history_size=3, line_search_fn="strong_wolfe"),
        run_lbfgs("to the end", 3, 1.0, max_iter=40, tolerance_grad=1e-9, line_search_fn="strong_wolfe"),
    ])
    for name, cases in (("optimizer", CASES), ("adafactor", ADAFACTOR), ("muon", MUON)):
        write_json(DATA / f"{name}_curves.json", [run(entry) for entry in cases])
        print(name, len(cases), "cases")
