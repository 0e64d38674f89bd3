"""What more I/O threads bring: the agent with one, two, four and eight, against a server that has CPUs of its own.

A machine of few CPUs can't show it: there the server takes what the threads would. The server's threads are reported beside: where they are busy all the
time, a ratio says what the server does, not what the agent could.
"""

from __future__ import annotations

from bench.client import Job, fixed
from bench.registry import Result
from bench.stage import Stage, interleaved, options_of, ratios

#: Threads of the agent.
THREADS = (1, 2, 4, 8)
#: CPUs below which a second I/O thread would take one from the server, or from the scheduler and the loop.
LEAST_CPUS = 8
#: Requests in flight: enough that eight threads have enough each.
IN_FLIGHT = 256


#: CPUs from which a second arrangement fits: the server on a third of them, so that eight threads have a CPU each and the loop one besides.
WIDE_CPUS = 12


def threads(stage: Stage) -> Result:
    """Samples per second by the number of I/O threads, plain and TLS.

    Where half of the CPUs have to carry eight threads, the scheduler and the loop, and an epoch takes half a second, starting counts as well. Beside it
    stands the third epoch with the server on a third of the CPUs.
    """
    count = stage.amount(40_000, 1000)
    half = max(1, len(stage.cpus) // 2)
    result = Result()
    if len(stage.cpus) < LEAST_CPUS:
        result.invalid = (
            f"this machine has {len(stage.cpus)} CPUs; threads of the server and of the agent need {LEAST_CPUS}"
        )
    rule = f"threads:{count}x110000"
    result.settings = {
        "data": rule,
        "server": f"no delays, a thread on each of {half} CPUs",
        "client": f"the other {len(stage.cpus) - half}: agent, and a loop that takes views and drops them; 512 MB of RAM, {IN_FLIGHT} requests in flight",
        "repetitions": stage.pairs,
    }
    _compare(stage, rule, result, server=half, epochs=1)
    if len(stage.cpus) >= WIDE_CPUS:
        third = len(stage.cpus) // 3
        result.settings["third epoch"] = f"the server on {third} CPUs, the client on {len(stage.cpus) - third}"
        _compare(stage, rule, result, server=third, epochs=3, named="third epoch, ")
    return result


def _compare(stage: Stage, rule: str, result: Result, *, server: int, epochs: int, named: str = "") -> None:
    """One arrangement: the server on the first CPUs, and the rate of the last epoch."""
    theirs, ours = stage.cpus[:server], stage.cpus[server:] or stage.cpus
    for transport in ("plain", "TLS"):
        kind = f"{named}{transport}"
        result.raw[kind] = {number: [] for number in THREADS}
        with stage.bucket(rule, profile="fast", tls=transport == "TLS", cpus=theirs) as bucket:

            def measure(number: int) -> float:
                attach = {**fixed(IN_FLIGHT), "io_threads": number}
                url, options = "s3://bench/threads", options_of(bucket)
                job = Job(url, options, raw="view", ram="512MB", attach=attach, epochs=epochs)
                before = bucket.cpu_seconds()
                reader = stage.read(job, cpus=ours)
                found = reader.last
                all_of_them = sum(epoch["seconds"] for epoch in reader.epochs)
                found["server_busy"] = (bucket.cpu_seconds() - before) / all_of_them / len(theirs)
                result.raw[kind][number].append(found)  # noqa: B023
                return float(found["samples"] / found["seconds"])

            rates = interleaved(stage.pairs, *(lambda number=number: measure(number) for number in THREADS))
        for number, rate in zip(THREADS, rates, strict=True):
            if number > 1:
                result.read(f"{kind}: {number} threads / 1", *ratios(rate, rates[0]))
        for number, rate in zip(THREADS, rates, strict=True):
            result.read(f"{kind}, {number} threads", *rate, unit="samples/s")
            busy = [found["server_busy"] for found in result.raw[kind][number]]
            result.read(f"{kind}, {number} threads: server busy", *busy)
