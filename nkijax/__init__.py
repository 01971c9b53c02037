"""nkijax runs AWS NKI kernels, as their authors wrote them, through JAX, and says what they cost.

run(kernel, *arrays)       what the kernel returns
function(kernel)           the kernel as a pure JAX function, for jit, grad, vmap and shard_map
trace(kernel, *arrays)     its program; print it
profile(kernel, *arrays)   a run with its cost
install()                  from then on `import nki` is nkijax
Case(kernel, inputs, …)    a kernel to regress, for `nkijax regress`
"""

from nkijax.api import Profile as Profile
from nkijax.api import function as function
from nkijax.api import profile as profile
from nkijax.api import run as run
from nkijax.api import trace as trace
from nkijax.errors import KernelError as KernelError
from nkijax.errors import Unsupported as Unsupported
from nkijax.imports import install as install
from nkijax.program import instructions as instructions
from nkijax.regress.case import Case as Case

__version__ = "0.1.0"
