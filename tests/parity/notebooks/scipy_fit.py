# Fitting a decay curve, and what numerical code prints.

# %% synthetic measurement
import numpy as np
from scipy import integrate, optimize, stats

rng = np.random.default_rng(42)
t = np.linspace(0, 5, 40)
y = 2.5 * np.exp(-1.3 * t) + 0.5 + rng.normal(0, 0.05, t.size)
y[:6]

# %% fit
def model(t, a, k, c):
    return a * np.exp(-k * t) + c


params, cov = optimize.curve_fit(model, t, y, p0=(1, 1, 0))
for name, value, error in zip("akc", params, np.sqrt(np.diag(cov))):
    print(f"{name} = {value:.4f} ± {error:.4f}")

# %% a result object
optimize.minimize(lambda p: (p[0] - 1) ** 2 + (p[1] + 2) ** 2, [0.0, 0.0], method="Nelder-Mead", options={"maxiter": 30})

# %% arrays of every kind
display(np.eye(3), np.array(["a", "bc"]), np.array([1 + 2j]), np.zeros((0, 3)))
np.arange(10000)

# %% print options
with np.printoptions(precision=2, suppress=True, linewidth=40):
    print(np.linspace(0, 1, 12))
%precision 3
np.pi, [np.float64(1) / 3], np.array([1 / 3])

# %% back
%precision
1 / 3

# %% warnings go to stderr
np.array([1.0, -1.0]) / np.array([0.0, 1.0])

# %% the same warning again, and one of our own
import warnings

np.sqrt(np.array([-1.0]))
warnings.warn("the fit is poor", stacklevel=1)

# %% warnings as errors
with warnings.catch_warnings():
    warnings.simplefilter("error")
    np.log(np.array([0.0]))

# %% numpy's error state
with np.errstate(all="raise"):
    try:
        np.float64(1) / np.float64(0)
    except FloatingPointError as error:
        print("caught:", error)

# %% statistics
result = stats.ttest_ind(rng.normal(0, 1, 30), rng.normal(0.4, 1, 30))
print(f"t={result.statistic:.3f} p={result.pvalue:.4f}")
stats.describe(y).nobs, stats.linregress(t, y).slope.round(4)

# %% quadrature
integrate.quad(np.exp, 0, 1)

# %% formulas
from IPython.display import Latex, Math

display(Math(r"y = a\,e^{-kt} + c"))
Latex(r"$\hat{k} = %.2f$" % params[1])

# %% a polynomial has a LaTeX form of its own
np.polynomial.Polynomial([1, 2, 3])

# %% linear algebra fails
np.linalg.inv(np.zeros((2, 2)))

# %% shapes do not fit
model(t, params, 1, 2)

# %% fit does not converge
optimize.curve_fit(model, t, y, p0=(1, 100, 0), maxfev=5)

# %% types of numbers
display(np.float32(1.5), np.int8(-3), np.bool_(True), np.datetime64("2024-01-01"), np.nan)
10**40, 1e-300, 0.1 + 0.2, complex(1, -1)
