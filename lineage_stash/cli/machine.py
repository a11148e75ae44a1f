"""The doctor's judgements about a machine: Spark's parts, Java's flags, clock, memory, ports. No measuring."""

from packaging.specifiers import SpecifierSet

from lineage_stash.cli.doctor import Check, judge_version, ok, problem, warning

LITTLE_MEMORY_BYTES = 1 << 30
"""A process may keep some 200 MB of lineage and payloads before callers feel it, and Ray's parts take as much."""

TIGHT_SHARE = 0.9
"""Ray kills workers when 95 % of the memory are in use."""

LITTLE_SHARED_BYTES = 256 << 20
"""Large values lie in shared memory: /dev/shm is 64 MB in a container unless somebody says otherwise."""

CLOCKS_APART_S = 1.0
"""Nothing is decided by clocks, but recoveries and runs are told by them."""

GIB = 1 << 30


def judge_spark_version(package: str, installed: str | None, wanted: SpecifierSet) -> Check:
    """Only Spark needs it, so its absence is no problem; a wrong version is."""
    if installed is None:
        return warning(f"version of {package}", "not installed", f"needed for Spark only: install {package}{wanted}")
    return judge_version(package, installed, wanted)


def judge_java_flags(refusal: str, given: dict[str, str]) -> Check:
    """Whether the Java starts with the flags that Spark, Arrow and RayDP need."""
    name = "flags of Java"
    also = "".join(f", and with {variable}={flags}" for variable, flags in given.items())
    if refusal:
        return warning(name, f"it does not start with those that Spark needs{also}: {refusal}",
                       "needed for Spark only: see JAVA_HOME, and unset what the environment adds")  # fmt: skip
    return ok(name, f"it starts with those that Spark needs{also}")


def judge_memory(total: int, available: int, shared: int) -> Check:
    """Room for processes, and for large values between them."""
    name = "memory"
    found = f"{available / GIB:.1f} of {total / GIB:.1f} GiB free, {shared / GIB:.1f} GiB in /dev/shm"
    if available < LITTLE_MEMORY_BYTES or available < (1 - TIGHT_SHARE) * total:
        return warning(name, found, "Ray kills workers when it runs out: end something, or use a larger machine")
    if shared < LITTLE_SHARED_BYTES:
        return warning(name, found, "large values are copied instead of shared: give /dev/shm more room, for example "
                       "with docker run --shm-size")  # fmt: skip
    return ok(name, found)


def judge_clock(ahead_s: float | None) -> Check:
    """Whether this machine and the coordinator's agree on the time."""
    name = "clock"
    if ahead_s is None:
        return ok(name, "the coordinator does not say what time it is there")
    found = f"the coordinator's is {abs(ahead_s) * 1e3:.0f} ms {'ahead' if ahead_s > 0 else 'behind'}"
    if abs(ahead_s) > CLOCKS_APART_S:
        advice = "moments in recoveries and runs are told by clocks: synchronize them, with chrony or ntpd"
        return warning(name, found, advice)
    return ok(name, found)


def judge_ports(tried: dict[str, str]) -> Check:
    """Whether services can be reached over the network."""
    name = "ports"
    if not tried:
        return ok(name, "the processes of this cluster do not listen: they talk by Ray's calls")
    refused = [reason for reason in tried.values() if reason]
    if refused:
        advice = "open the ports between the nodes, or have Ray carry everything: init(transport='ray')"
        return problem(name, f"{len(refused)} of {len(tried)} services cannot be reached: {refused[0]}", advice)
    return ok(name, f"{len(tried)} services can be reached over the network")
