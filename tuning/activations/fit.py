"""Minimax polynomials of the activations: prints the f32 coefficients used in crates/kernels/src/math/.

    python3 fit.py        (needs mpmath and numpy)

Remez exchange on the relative error that matters for each function. Coefficients are rounded to
f32 from the lowest power up, and the rest is fitted again after each rounding, so that every
coefficient makes up for the rounding of those before it.
"""

import mpmath as mp
import numpy as np

mp.mp.prec = 120


def remez(target, weight, powers, fixed, low, high):
    """Coefficients of `powers` that minimise max |weight * (target - fixed - sum c_k x^k)|."""
    count = len(powers) + 1
    middle, half = (low + high) / 2, (high - low) / 2
    points = [middle - half * mp.cos(mp.pi * i / (count - 1)) for i in range(count)]

    def rest(x):
        return target(x) - sum(c * x**k for k, c in fixed.items())

    for _ in range(12):
        points = [x if x != 0 else mp.mpf("1e-12") for x in points]
        rows = [[x**k for k in powers] + [(-1) ** i / weight(x)] for i, x in enumerate(points)]
        solved = mp.lu_solve(mp.matrix(rows), mp.matrix([rest(x) for x in points]))
        found = {k: solved[i] for i, k in enumerate(powers)}

        def error(x):
            return weight(x) * (rest(x) - sum(c * x**k for k, c in found.items()))

        # The extrema of the error: one between each pair of its sign changes.
        grid = [low + (high - low) * mp.mpf(i) / 1000 for i in range(1001)]
        grid = [x if x != 0 else mp.mpf("1e-12") for x in grid]
        values = [error(x) for x in grid]
        extrema, best = [], 0
        for i in range(1, len(grid)):
            if mp.sign(values[i]) != mp.sign(values[best]):
                extrema.append(grid[best])
                best = i
            elif abs(values[i]) > abs(values[best]):
                best = i
        extrema.append(grid[best])
        if len(extrema) < count:
            break
        while len(extrema) > count:
            extrema.pop(0 if abs(error(extrema[0])) < abs(error(extrema[-1])) else -1)
        points = extrema
    return found, max(abs(v) for v in values)


def fit(name, target, weight, powers, fixed, low, high):
    fixed, powers = dict(fixed), list(powers)
    given = set(fixed)
    while powers:
        found, _ = remez(target, weight, powers, fixed, low, high)
        power = powers.pop(0)
        fixed[power] = mp.mpf(float(np.float32(float(found[power]))))
    xs = [low + (high - low) * mp.mpf(2 * i + 1) / 4000 for i in range(2000)]
    worst = max(abs(weight(x) * (target(x) - sum(c * x**k for k, c in fixed.items()))) for x in xs)
    print(f"// {name}: error {float(worst * 2**24):.3f} x 2^-24 on [{float(low):.4f}, {float(high):.4f}]")
    for k in sorted(fixed, reverse=True):
        mark = "  (given)" if k in given else ""
        print(f"C{k}: {np.float32(float(fixed[k]))!r:32} {int(np.float32(float(fixed[k])).view(np.uint32)):#010x}{mark}")


def split(name, value, bits):
    """`value` as a sum of two f32, the first with `bits` significant bits."""
    exponent = mp.floor(mp.log(value, 2))
    step = mp.mpf(2) ** (exponent - bits + 1)
    high = mp.nint(value / step) * step
    print(f"// {name} = {float(high)!r} + {np.float32(float(value - high))!r}")


ln2 = mp.log(2)
pad = mp.mpf("1.0001")
split("ln 2", ln2, 24)
fit("e^-g", lambda g: mp.exp(-g), lambda g: mp.exp(g), range(2, 7), {0: mp.mpf(1), 1: mp.mpf(-1)}, -ln2 / 2 * pad, ln2 / 2 * pad)
# Above the seam of tanh. Relative error.
fit("e^2g", lambda g: mp.exp(2 * g), lambda g: mp.exp(-2 * g), range(2, 7), {0: mp.mpf(1), 1: mp.mpf(2)}, -ln2 / 4 * pad, ln2 / 4 * pad)


def series(function, high, terms, name):
    """r(w) with function(x) = x + x^3 r(x^2) for x^2 <= high, error relative to x."""
    fit(
        name,
        lambda w: (function(mp.sqrt(w)) / mp.sqrt(w) - 1) / w,
        lambda w: w + high / 200,  # the error is divided by x; the constant keeps the system regular at 0
        range(0, terms),
        {},
        mp.mpf(0),
        high,
    )


series(mp.tanh, mp.mpf("0.40"), 5, "tanh x below the seam, r(x^2)")
series(lambda t: 2 * mp.atanh(t / 2), mp.mpf(4) / 9 * pad, 4, "2 artanh(t/2), r(t^2)")
