"""`foreload doctor`: what on this machine would hinder us, in one report with remedies.

Each check is a function that answers with findings: `machine` looks at the kernel and its limits, `directories` at the cache
directory and the agent, `store` at credentials, clock and the bucket, `file` at a file or directory. None changes anything, but that
the agent is started.
"""

from foreload.cli.doctor.verb import doctor

__all__ = ["doctor"]
