"""Tessera's random numbers, written again from docs/random-numbers.md with nothing of Tessera in it.

    python3 random_numbers.py        # prints the tables of test vectors in that page

Floats are IEEE single precision. A fused multiply-add is computed exactly, in rational numbers, and
rounded once; so is every other operation.
"""
import math
import struct
from fractions import Fraction

MASK = 0xFFFFFFFF


def bits_of(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def of_bits(bits):
    return struct.unpack("<f", struct.pack("<I", bits & MASK))[0]


def f32(exact):
    """The float nearest to an exact number, ties to even."""
    exact = Fraction(exact)
    if exact == 0:
        return 0.0
    exponent = math.floor(math.log2(abs(exact)))
    while Fraction(2) ** exponent > abs(exact):
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= abs(exact):
        exponent += 1
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    return float(round(exact / unit) * unit)  # round() of a Fraction goes to even


def add(a, b):
    return f32(Fraction(a) + Fraction(b))


def mul(a, b):
    return f32(Fraction(a) * Fraction(b))


def fma(a, b, c):
    return f32(Fraction(a) * Fraction(b) + Fraction(c))


def sqrt(x):
    """Correctly rounded: the float whose square is nearest, by exact comparison of the midpoints."""
    guess = f32(Fraction(math.sqrt(x)))
    best = guess
    for candidate in (of_bits(bits_of(guess) - 1), guess, of_bits(bits_of(guess) + 1)) if x > 0 else (0.0,):
        low = (Fraction(best) + Fraction(candidate)) / 2
        if (candidate > best and low * low < Fraction(x)) or (candidate < best and low * low > Fraction(x)):
            best = candidate
    return best


def constant(decimal):
    return f32(Fraction(decimal))


def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & MASK, (p0 >> 32) ^ c[3] ^ k[1], p0 & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


def stream_number(name):
    h = 0xCBF29CE484222325
    for c in name.encode():
        h = ((h ^ c) * 0x100000001B3) % 2**64
    return h


def key_of(seed, stream):
    x = (seed + (stream + 1) * 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    x ^= x >> 31
    return [x & MASK, x >> 32]


def words(seed, stream, element):
    counter = element // 4
    return philox([counter & MASK, counter >> 32, 0, 0], key_of(seed, stream_number(stream)))


def uniform(word):
    return f32(Fraction(word >> 8, 2**24))


def polynomial(x, first, *others):
    p = constant(first)
    for c in others:
        p = fma(p, x, constant(c))
    return p


def radius(u):
    """sqrt(-2 log u): u = 2^e (1 + m) with 1 + m in [sqrt(1/2), sqrt(2))."""
    raw = (bits_of(u) - 0x3F3504F3) & MASK
    e = float((raw >> 23) - (1 << 9 if raw >> 31 else 0))
    m = add(of_bits((raw & 0x7FFFFF) + 0x3F3504F3), -1.0)
    p = polynomial(m, "7.0376836292e-2", "-1.1514610310e-1", "1.1676998740e-1", "-1.2420140846e-1",
                   "1.4249322787e-1", "-1.6668057665e-1", "2.0000714765e-1", "-2.4999993993e-1",
                   "3.3333331174e-1")
    square = mul(m, m)
    y = mul(mul(p, m), square)
    y = fma(e, constant("-2.12194440e-4"), y)
    y = fma(square, -0.5, y)
    log_u = fma(e, 0.693359375, add(m, y))
    return sqrt(max(mul(log_u, -2.0), 0.0))


def normals(word0, word1):
    r = radius(f32(Fraction((word0 >> 8) + 1, 2**24)))
    k = word1 >> 8
    quadrant = (k + (1 << 21)) >> 22
    angle = mul(float(k - (quadrant << 22)), constant("3.7450703e-7"))
    z = mul(angle, angle)
    sine = polynomial(z, "-1.9515295891e-4", "8.3321608736e-3", "-1.6666654611e-1")
    sine = fma(mul(sine, z), angle, angle)
    cosine = polynomial(z, "2.443315711809948e-5", "-1.388731625493765e-3", "4.166664568298827e-2")
    cosine = fma(cosine, mul(z, z), fma(z, -0.5, 1.0))
    c, s = (sine, cosine) if quadrant & 1 else (cosine, sine)
    return mul(r, -c if (quadrant + 1) & 2 else c), mul(r, -s if quadrant & 2 else s)


def normal(block, element):
    pair = element % 4 // 2 * 2
    return normals(block[pair], block[pair + 1])[element % 2]


def finish(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def mix(a, b):
    return finish(a ^ ((b + 0x9E3779B97F4A7C15 + (a << 6) + (a >> 2)) % 2**64))


def order(windows, seed, epoch, place):
    h = 1
    while 4**h < windows:
        h += 1
    while True:
        key = mix(mix(0x7465737365726121, seed), epoch)
        left, right = place >> h, place % 2**h
        for _ in range(8):
            key = mix(key, 1)
            left, right = right, left ^ (mix(key, right) % 2**h)
        place = left << h | right
        if place < windows:
            return place


def place_in_step(i, row, batch, parts, first, rows):
    mine = i // row
    return (mine // rows * (batch // parts) + first + mine % rows) * row + i % row


def main():
    assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    print("| seed | stream | element | word | uniform in [0, 1) | normal |")
    print("| --- | --- | --- | --- | --- | --- |")
    places = [(0, "default", i) for i in range(8)]
    places += [(42, "init", i) for i in (0, 1, 2, 3, 4, 999, 1000, 1001)]
    places += [(2**63 + 7, "dropout", 2**34 + i) for i in (0, 1, 2, 3, 4, 5, 6, 7)]
    for seed, stream, element in places:
        block = words(seed, stream, element)
        word = block[element % 4]
        print(f"| {seed} | {stream} | {element} | {word:08x} | {uniform(word).hex()} "
              f"| {normal(block, element).hex()} |")

    print("\nThe first ten windows of an epoch:\n")
    print("| windows | seed | epoch | order |")
    print("| --- | --- | --- | --- |")
    for windows, seed, epoch in [(10, 1, 0), (10, 1, 1), (10, 2, 0), (100, 7, 3), (1000003, 2**63 + 7, 5)]:
        print(f"| {windows} | {seed} | {epoch} | "
              f"{', '.join(str(order(windows, seed, epoch, i)) for i in range(10))} |")

    print("\nWhich elements of an activation with 3 elements for each row dropout with p = 0.4 keeps (1: kept), in a "
          "step of 12 rows,\nwith seed 5, at offset 8 of the stream \"dropout\":\n")
    print("| parts | first | rows | kept |")
    print("| --- | --- | --- | --- |")
    for parts, first, rows in [(1, 0, 12), (1, 4, 4), (2, 0, 3), (2, 3, 3), (3, 2, 1)]:
        kept = ""
        for i in range(rows * parts * 3):
            element = 8 + place_in_step(i, 3, 12, parts, first, rows)
            dropped = words(5, "dropout", element)[element % 4] < 0.4 * 2**32
            kept += "" if i % 3 or i == 0 else " "
            kept += "0" if dropped else "1"
        print(f"| {parts} | {first} | {rows} | {kept} |")


if __name__ == "__main__":
    main()
