"""The server's own limit of open files: as high as it may be."""

import subprocess
import sys

PROGRAM = """
import resource
from cellfork.server.serving import allow_descriptors
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
allow_descriptors()
allow_descriptors()
soft, after = resource.getrlimit(resource.RLIMIT_NOFILE)
print(after == hard, soft == min(hard, 1 << 18) if hard != resource.RLIM_INFINITY else soft == 1 << 18)
"""


def test_the_soft_limit_is_raised():
    """A process that was started with a low soft limit serves with all that its hard limit allows; that one stays as it is."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"
