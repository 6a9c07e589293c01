"""The scalar recursions over the steps of a run, each written once and run plain or compiled (see `_scan`).

Only floats, arrays and `math` may appear here: the same text is compiled by numba for long runs. Letters:
q = E‖w‖², η = lr, a = share of the weight kept by decay, u = update direction, and n, y the two parts of every
optimizer's averaging filter: n = A·h + B·y, then y ← p·y + h, where h is the gradient (with coupled L2: g + λw).
Of a rotation they give dot = ⟨w,w'⟩ and cross = ‖w‖²‖w'‖² − ⟨w,w'⟩², of which `trajectory` makes the angle.
"""

from __future__ import annotations

from math import asin, erfc, exp, pi, sqrt


def decayed_share(c):
    """φ = E[w²; u·w ≥ 0] / E[w²] for jointly Gaussian (u, w) of correlation c.  [theory] 1, cautious decay."""
    return 0.5 + (asin(c) + c * sqrt(1.0 - c * c)) / pi


def masked_moments(x, q, r2, d, signed):
    """φ = E[w²; u·w ≥ 0]/E[w²], E[u·w; u·w ≥ 0], and the share of κu (`masked_split`) that is remembered as u is.

    From x = E⟨w,u⟩, q = E‖w‖², r2 = E‖u‖² and the decay d where it acts. Gaussian (u, w) of correlation c:
    E[u·w; u·w ≥ 0] = √(q·r2) (√(1−c²) + c(π/2 + arcsin c))/π. For u = sign(n) it is n that is Gaussian with w:
    c = √(π/2) x/√(q·r2), and E[|w|; n·w ≥ 0] = √(q·r2) (1 + c)/√(2π).

    With momentum the mask stays for a while, w becomes a mixture of scales (kurtosis 4 to 7), w = S·v with v Gaussian,
    and the correlation of u and v is larger than that of u and w by g = √E[S²]/E[S]. Measured on simulated walks,
    g = 1 + 0.37|c| over ηλ/(1−β1) from 0.05 to 1 (the sign: 0.26|c|); `docs/log.md` has the figures.

    From far below equilibrium the first gradients outweigh all later ones, the sign stays for hundreds of steps, and
    |w| is nearly the same for all weights (kurtosis near 1), of which a share (1 + c)/2 has turned: then φ and
    E[|w|; mask]/√(q·r2) are (1 + c)/2, c = x/√(q·r2). A correlation above the one at equilibrium, of at most
    max(0.2, 2√d), tells it; beyond, half of the moments are of this kind (measured, as g, up to d = 0.025).
    """
    size = sqrt(q * r2)
    if size == 0.0:
        return 0.5, 0.0, 1.0
    raw = x / size
    c = raw * (sqrt(0.5 * pi) if signed else 1.0)
    g = 1.0 + (0.26 if signed else 0.37) * abs(c)
    c = min(1.0, max(-1.0, c * g))
    phi = decayed_share(c)
    if not signed:
        return phi, size / g * (sqrt(1.0 - c * c) + c * (0.5 * pi + asin(c))) / pi, 1.0
    far = min(1.0, max(0.0, abs(raw) - max(0.2, 2.0 * sqrt(d))) / 0.3)
    turned, own = 0.5 * (1.0 + raw), 1.0 - 0.5 * far
    aligned = own * (1.0 + c) / (g * sqrt(2.0 * pi)) + 0.5 * far * turned
    return own * phi + 0.5 * far * turned, size * aligned, 0.86 + 0.14 * far


def masked_split(x, q, r2, d, phi, aligned, remembered):
    """Decay of the coordinates with u·w ≥ 0 as decay of all of w and a longer step: w·mask ≈ α·w + κ·u.

    The mask follows u, so what it takes from w is partly u itself. Least squares on (w, u), from E[w²; mask] = φq and
    E[u·w; mask] = `aligned`. Returns the kept share 1 − dα and the addition dκ to the step. With the sign, |w| goes
    with the length of the run of equal signs behind it, and only 0.86 of κu is `remembered` as u is (measured, as g).
    """
    gram = q * r2 - x * x
    if gram <= 1e-12 * q * r2:
        return 1.0 - d * phi, 0.0
    more = d * (aligned * q - phi * q * x) / gram
    return 1.0 - d * (phi * q * r2 - aligned * x) / gram, remembered * more


def cautious_step(q, push, inner, d, phi, aligned):
    """q', ⟨w,w'⟩ and ‖w‖²‖w'‖² − ⟨w,w'⟩² of w' = w − ηu − d·w·[u·w ≥ 0], with push = η²‖u‖² and inner = η⟨w,u⟩."""
    q_new = q - 2.0 * inner + push - (2.0 - d) * d * phi * q + 2.0 * d * aligned
    dot = q - inner - d * phi * q
    cross = q * push - inner * inner + d * q * (d * phi * (1.0 - phi) * q + 2.0 * (aligned - phi * inner))
    return q_new, dot, cross


def begun_with_one(first, rest):
    """E[1/v] and E[z²/v] of v = first·z² + rest, z Gaussian: averages of squares that began with one gradient, z.

    E[1/v] = √(π/(2ab)) e^x erfc √x with a = first, b = rest, x = b/2a, and by its series where x is large; both are
    1/(a + b) where there is nothing but the first gradient, whose sign is all that is left of it in z/√v.
    """
    if rest <= 0.0:
        return 1.0 / first, 1.0 / first
    x = 0.5 * rest / first if first > 0.0 else 1e9
    if x > 30.0:
        inverse = (1.0 - 0.5 / x + 0.75 / (x * x)) / rest
    else:
        inverse = sqrt(0.5 * pi / (first * rest)) * exp(x) * erfc(sqrt(x))
    return inverse, (1.0 - rest * inverse) / first if x < 1e6 else inverse


def first_order(factor, term, y):
    """y_t = factor_t · y_{t−1} + term_t, from y_0 = 0."""
    state = 0.0
    for t in range(len(y)):
        state = factor[t] * state + term[t]
        y[t] = state


def tied_design(ratio, alpha, first, lr):
    """The lr whose memory has the ratios w_j/w_{j−1} when λ_j = α η_j: αr·η_{j−1}·η² + η − r·η_{j−1} = 0.

    Written as 2c/(1 + √(1 + 4αc²)) with c = r·η_{j−1}, which does not cancel.
    [theory] 3; for ratio 1 it is the exact form of [memory-article]'s Eq. 17.
    """
    lr[0] = first
    for j in range(1, len(lr)):
        c = ratio[j] * lr[j - 1]
        lr[j] = 2.0 * c / (1.0 + sqrt(1.0 + 4.0 * alpha * c * c))


def filter_moments(A, B, p, lam, G, q, y2, wy):
    """‖n‖², ⟨w,n⟩, ⟨y',n⟩, ‖y'‖² and ⟨w,y'⟩ as the filter takes in h = g + λw, from E‖g‖², E‖w‖², E‖y‖² and E⟨w,y⟩."""
    H = G + lam * lam * q
    hy = lam * wy
    n2 = A * A * H + 2.0 * A * B * hy + B * B * y2
    wn = A * lam * q + B * wy
    yn = A * p * hy + B * p * y2 + A * H + B * hy
    return n2, wn, yn, p * p * y2 + 2.0 * p * hy + H, p * wy + lam * q


def linear_moments(
    lr, kept, l2, scale, A, B, p, beta2, adaptive, corrected, zeros, nested, cautious, invariant, grad2, size, finite_r,
    finite_x, q, norm2, cross, dot, update2,
):  # fmt: skip
    """Norm and rotation where the direction is linear in the gradients, up to Adam's 1/√v: SGDM, RMSProp, Adam.

    Second moments of (w, y), `filter_moments`, in a random walk with E‖g‖² = g̃²/q (scale invariance) or g̃²:

        e = η·b/√v̂        q' = a²q − 2ae⟨w,n⟩ + e²‖n‖²
        tan θ = √(q·e²‖n‖² − e²⟨w,n⟩²) / (aq − e⟨w,n⟩)

    The tangent is exact (‖w‖²‖w'‖² − ⟨w,w'⟩² needs no decay term) and keeps its digits at any angle.
    [theory] 2 tracks u itself, which is the nested variant; here m is tracked and v̂ of the step divides all of it, as
    Adam does. finite_r and finite_x correct ‖u‖² and ⟨w,u⟩ for a v that fluctuates (`kernels.adam_factors`).

    Where averages do not begin as zeros but as the first gradient g₁ and its square, v = β2^{t−1}g₁² + … is for long
    what that one gradient happened to be, and E[1/v] is far above 1/E[v]: `begun_with_one`.
    """
    v = y2 = wy = g_y2 = 0.0  # v̂'s sum, E‖y‖², E⟨w,y⟩, and E‖y‖² of the gradient's part alone
    v_first = g_first = w_first = e_first = 0.0  # of v, ‖n‖² and ⟨w,n⟩ what the first gradient is by itself
    pow1 = pow2 = 1.0
    for t in range(len(lr)):
        first = pow1  # the share of the first gradient in n, where averages begin with it
        pow1 *= p
        pow2 *= beta2
        lam = l2[t]
        G = grad2 / q if invariant else grad2
        e = lr[t]
        if adaptive:
            begins = not zeros and t == 0
            square = (G + lam * lam * q) / size
            v_first = square if begins else beta2 * v_first
            if not begins:
                v = beta2 * v + (1.0 - beta2) * square
            over_v, over_own = (1.0 / v, 1.0 / v) if v_first == 0.0 else begun_with_one(v_first, v)
            filled = 1.0 - pow2 if corrected else 1.0
            e *= sqrt(scale[t])
            if corrected:
                e /= 1.0 - pow1
            e_first = e if nested else e * sqrt(over_own * filled)
            if begins:
                g_first, G = size if nested else G, 0.0
            if nested:
                G *= over_v * filled
            else:
                e *= sqrt(over_v * filled)
            settled = 1.0 - pow2
            fix_r = 1.0 + settled * (finite_r - 1.0)
            fix_x = 1.0 + settled * (finite_x - 1.0)
        else:
            G *= scale[t]
            fix_r = fix_x = 1.0
        n2, wn, yn, y2_new, wy_new = filter_moments(A, B, p, lam, G, q, y2, wy)
        a = kept[t]
        own = e_first * e_first * first * first * g_first
        push = e * e * n2 * fix_r + own
        inner = e * wn * fix_x + e_first * first * w_first
        if cautious:
            d = 1.0 - a
            phi, aligned, remembered = masked_moments(inner, q, push, d, False)
            q_new, dot[t], cross[t] = cautious_step(q, push, inner, d, phi, aligned)
            a, more = masked_split(inner, q, push, d, phi, aligned, remembered)
            e, e_first = e * (1.0 + more), e_first * (1.0 + more)
        else:
            more = 0.0
            q_new = a * a * q - 2.0 * a * inner + push
            dot[t] = a * q - inner
            cross[t] = q * push - inner * inner
        wy = a * wy_new - e * yn
        w_first = a * w_first - e_first * first * g_first
        update2[t] = (e / (1.0 + more)) ** 2 * (A * A * G + B * B * g_y2) * fix_r + own
        g_y2 = p * p * g_y2 + G
        y2 = y2_new
        q = q_new
        norm2[t] = q


def elementwise_moments(
    lr, l2, scale, A, B, p, beta2, corrected, invariant, grad2, size, finite_r, finite_x, q, share, q_of, v_of, y2_of,
    wy_of, g_y2, norm2, cross, dot, update2,
):  # fmt: skip
    """The same for Adam + L2, where λw enters v and every weight so gets a step size of its own.

    The weights are split into classes by their initial size, class j holding a share of all weights and E‖w‖² = q_of[j]
    (as if all weights were of that class). [kosson2024] takes one v for all (Eq. 76, "quite rough"), which fails while
    λ|w| is large beside the gradient: large weights then shrink by η a step, not by a fraction.

    Where λw makes up a share s of v, noise in m is noise in v too, and u ≈ sign(w) does not feel it: to first order in
    the noise ḡ of the two averages u√v = λw + ḡ_m − s·ḡ_v. Both averages must see the same w for this, so s is lowered
    where w decays within the average's window.
    """
    classes = len(share)
    pow1 = pow2 = 1.0
    vv = mv = 0.0  # E ḡ_v², E ḡ_m ḡ_v
    for t in range(len(lr)):
        pow1 *= p
        pow2 *= beta2
        b1, b2 = (1.0 - pow1, 1.0 - pow2) if corrected else (1.0, 1.0)
        lam = l2[t]
        G = (grad2 / q if invariant else grad2) * scale[t]
        vv = beta2 * beta2 * vv + (1.0 - beta2) ** 2 * G
        mv = p * beta2 * mv + A * (1.0 - beta2) * G
        grad_n2 = A * A * G + B * B * g_y2
        q_new = push = inner = grad_push = 0.0
        for j in range(classes):
            W2 = lam * lam * q_of[j]
            v_of[j] = beta2 * v_of[j] + (1.0 - beta2) * (G + W2)
            v_hat = v_of[j] / b2
            e = lr[t] / (b1 * sqrt(v_hat / size))
            s = min(1.0, W2 / v_hat) / (1.0 + e * lam / (1.0 - p))
            fix_r = 1.0 + (1.0 - pow2) * (1.0 - s) * (finite_r - 1.0)
            fix_x = 1.0 + (1.0 - pow2) * (1.0 - s) * (finite_x - 1.0)
            shared_v = s * vv * (b1 / b2) ** 2
            shared_m = mv * (b1 / b2)
            n2, wn, yn, y2_of[j], wy_new = filter_moments(A, B, p, lam, G, q_of[j], y2_of[j], wy_of[j])
            noise = s * (shared_v - 2.0 * shared_m)
            n2, wn = max(0.0, (n2 + noise) * fix_r), wn * fix_x
            yn -= s * shared_m / A
            push += share[j] * e * e * n2
            inner += share[j] * e * wn
            q_of[j] += e * e * n2 - 2.0 * e * wn
            wy_of[j] = wy_new - e * yn
            grad_push += share[j] * e * e * max(0.0, grad_n2 + noise) * fix_r
            q_new += share[j] * q_of[j]
        g_y2 = p * p * g_y2 + G
        update2[t] = grad_push
        cross[t], dot[t] = q * push - inner * inner, q - inner
        q = q_new
        norm2[t] = q


def saturating_moments(
    lr, kept, scale, A, B, p, powers, weights, signed, cautious, invariant, u2, q, terms, norm2, cross, dot, update2
):
    """Norm and rotation where the direction has a fixed size: sign (SignSGDM, Lion), msign (Muon), normalised GD.

    E⟨u_s, u_t⟩ = ‖u‖² f(corr(n_s, n_t)) with f(ρ) = Σ_i weights_i ρ^powers_i (`kernels`). With Y = E y², N = E n² and
    Z = E[y n] per element, corr(n_{t−k}, n_t) = p^{k−1} B Z_{t−k} / √(N_{t−k} N_t), so each power is a first-order
    recursion of its own, and E⟨w,u⟩ = −‖u‖ Σ_i weights_i terms_i costs a few of them a step.
    """
    y2 = n_last = a_last = step_last = rho_last = 0.0
    for t in range(len(lr)):
        G = 1.0 / q if invariant else 1.0
        n_now = A * A * G + B * B * y2
        r2 = u2 * scale[t]
        x = 0.0
        if t > 0 and B > 0.0:
            shrink = sqrt(n_last / n_now)
            older, newer = p * shrink, min(1.0, rho_last * shrink)
            capped = min(1.0, older)  # older > 1 needs a leap of the norm; only the first power then matters
            for i in range(len(powers)):
                factor = older if powers[i] == 1.0 else capped ** powers[i]
                terms[i] = a_last * factor * terms[i] + step_last * newer ** powers[i]
                x -= weights[i] * terms[i]
            x *= sqrt(r2)
        a, e = kept[t], lr[t]
        push, inner = e * e * r2, e * x
        step = e
        if cautious:
            d = 1.0 - a
            phi, aligned, remembered = masked_moments(x, q, r2, d, signed)
            q_new, dot[t], cross[t] = cautious_step(q, push, inner, d, phi, e * aligned)
            a, more = masked_split(x, q, r2, d, phi, aligned, remembered)
            step += more
        else:
            q_new = a * a * q - 2.0 * a * inner + push
            dot[t] = a * q - inner
            cross[t] = q * push - inner * inner
        y2_new = p * p * y2 + G
        rho_last = B * (A * G + p * B * y2) / n_now  # corr(n_t, n_{t+1}) · √(N_{t+1}/N_t)
        a_last, step_last, n_last, y2 = a, step * sqrt(r2), n_now, y2_new
        update2[t] = push
        q = q_new
        norm2[t] = q
