"""The bars of this project: each requirement, its command, and the judgement on the output.

Must NOT measure anything, nor know where outputs are kept: benchmarks.bars does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Told = Mapping[str, Any]
"""The JSON output of a command."""
Verdict = tuple[str, bool]
"""(measured figures, whether they meet the bar)"""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement."""

    name: str
    asked: str
    command: str
    """Arguments after `python -m benchmarks.`, without --json."""
    judge: Callable[[Told], Verdict]


def share(least: float, *, pause_max_s: float | None = None) -> Callable[[Told], Verdict]:
    """At least this share of a line is used by payload of the first system, from the last
    contribution handed over to the last result in a rank's buffer; the share while the data moves
    is shown too. `pause_max_s`: the longest permitted pause between exchanges, in seconds."""

    def judge(told: Told) -> Verdict:
        found = told["results"][0]
        whole, moving = found["payload_share"], found["data_path_share"]
        words, met = f"{whole:.1%} ({moving:.1%} while the data moves)", whole >= least
        if pause_max_s is None:
            return words, met
        pause_s = found["pause_max_s"]
        return f"{words}, at most {pause_s:.1f} s after another", met and pause_s <= pause_max_s

    return judge


def first_share(least: float) -> Callable[[Told], Verdict]:
    """The same for the first exchange, right after its connections were made."""

    def judge(told: Told) -> Verdict:
        found = told["results"][0]["first_share"]
        return f"{found:.1%}", found >= least

    return judge


def ratio(most: float, *, over: int = 1, cpu: float | None = None) -> Callable[[Told], Verdict]:
    """The first system's median time is at most this multiple of another's; `cpu`: the same for CPU
    seconds. The first system's results must be equal on all peers."""

    def judge(told: Told) -> Verdict:
        ours, other = told["results"][0], told["results"][over]
        found = ours["median_s"] / other["median_s"]
        found_cpu = ours["cpu_s"] / other["cpu_s"]
        words = f"{found:.2f} ({1e3 * ours['median_s']:.0f} to {1e3 * other['median_s']:.0f} ms)"
        met = found <= most and (cpu is None or found_cpu <= cpu) and ours["bit_identical"]
        return f"{words}; CPU {found_cpu:.2f}", met

    return judge


def int8_exact(told: Told) -> Verdict:
    """Bytes counted by the network devices, with all headers, per contributed element; and the
    errors."""
    found = told["results"][0]
    element_bytes = found["wire_bytes"] / (told["peers"] * (told["mib"] << 18))
    errors = found["rms_error"], abs(found["mean_error"])
    met = (
        found["bit_identical"]
        and element_bytes <= 1.02
        and errors[0] <= 0.0072
        and errors[1] < 1e-5
    )
    return f"{element_bytes:.3f} bytes, rms {errors[0]:.5f}, mean {errors[1]:.0e}", met


def step(*, p50_ms: float, p99_ms: float) -> Callable[[Told], Verdict]:
    """Latency of a stepwise run, from payload to mean."""

    def judge(told: Told) -> Verdict:
        ours, gloo = told["results"]["lowcomm"], told["results"]["gloo all_reduce"]
        found, beside = (f"{x['p50_ms']:.2f} and {x['p99_ms']:.1f} ms" for x in (ours, gloo))
        met = ours["p50_ms"] <= p50_ms and ours["p99_ms"] <= p99_ms
        return f"{found} (gloo's all-reduce {beside})", met

    return judge


def joiner(told: Told) -> Verdict:
    found = told["connection_to_verified_s"], told["connection_to_verified_max_s"]
    words = f"{found[0]:.2f} s (at most {found[1]:.2f} of {told['joins']})"
    return f"{words}, {told['donors_used']} donors", found[0] <= 0.5


def slowed(figure: str) -> Callable[[Told], Verdict]:
    """Slowdown of the members while a peer joins."""
    return lambda told: (f"{told[figure]:.2f} times", told[figure] <= 1.2)


def speed(codec: str, *, encode: float, decode: float) -> Callable[[Told], Verdict]:
    """Least rates of a codec in GB/s of fp32, with one thread."""

    def judge(told: Told) -> Verdict:
        (one,) = [each for each in told["results"] if each["codec"] == codec]
        found = one["encode_gb_s"], one["decode_gb_s"]
        return f"{found[0]:.2f}, {found[1]:.2f}", found[0] >= encode and found[1] >= decode

    return judge


def blocked(told: Told) -> Verdict:
    found = told["results"][0]
    milliseconds = 1e3 * found["copy_in_s"], 1e3 * found["copy_out_s"]
    return f"{milliseconds[0]:.2f} + {milliseconds[1]:.2f} ms", sum(milliseconds) <= 3.0


def lag(told: Told) -> Verdict:
    """Lateness of a daemon's event loop while payload moves; the one at any time is shown too."""
    found = told["results"][0]
    busy_ms, any_ms = 1e3 * found["busy_lag_p99_s"], 1e3 * found["lag_p99_s"]
    return f"{busy_ms:.2f} ms ({any_ms:.2f} ms of the last minute)", busy_ms <= 10.0


def heartbeats(told: Told) -> Verdict:
    """Lateness of heartbeats between two daemons, which contains that of both their loops."""
    found = told["results"][0]
    late_ms, lag_ms = (1e3 * found[key] for key in ("heartbeat_late_max_s", "lag_max_s"))
    return f"{late_ms:.0f} ms (one loop by itself {lag_ms:.0f} ms)", late_ms <= 50.0


def memory(most: float) -> Callable[[Told], Verdict]:
    """Peak memory beyond the outer state, in fragments."""
    return lambda told: (f"{told['fragments']:.2f}", told["fragments"] <= most)


def others(told: Told) -> Verdict:
    """lowcomm is the fastest; a system without a figure is shown with its error."""
    ours, *rest = (x["median_s"] for x in told["results"] if not x["error"])
    words = [f"{x['system']} {x['median_s']:.3f} s" for x in told["results"] if not x["error"]]
    words += [f"{x['system']}: {x['error']}" for x in told["results"] if x["error"]]
    return ", ".join(words), ours <= min(rest, default=ours)


def _name(sealed: str) -> str:
    return sealed.replace(" --", "-")


def _words(sealed: str) -> str:
    return sealed.replace(" --", ", ")


BESIDE = ("", " --encrypted")
"""Each bar without encryption is also reported over encrypted links."""
LONG = "exchange --against none --encrypted --line 100mbit --rtt 100ms"
COLD = f"{LONG} --idle 20s --warmup 1"
SHARED = "exchange --against none --line 1gbit --warmup 1"
CODECS = "codecs --only int8,fp4 --repeats 25"
LAG = "exchange --against none --encrypted --mib 256 --rounds 60"
INT8 = "exchange --against none --codec int8,fp32"
GLOO = "exchange --against gloo"
SEALED = "exchange --encrypted --against clear,gloo"
JOINING = "joining --mib 64"
SHARES = (
    ("fp32", 2, 256, 0.99),
    ("fp32", 4, 128, 0.99),
    ("int8", 2, 512, 0.97),
    ("int8", 4, 256, 0.97),
    ("fp4", 2, 512, 0.97),
    ("fp4", 4, 256, 0.97),
)
"""(codec, peers, MiB contributed by each peer, least share). At least 64 MiB pass over the line:
the time of a commit does not depend on the bytes, so with more bytes the figure depends less on it.
"""
BARS = (
    *(
        Requirement(
            f"shared-{codec}-{peers}{_name(sealed)}",
            f"1 Gbit/s that {peers} peers share, {codec}{_words(sealed)}: at least {least:.0%}",
            f"{SHARED}{sealed} --codec {codec} --peers {peers} --mib {mib}",
            share(least),
        )
        for codec, peers, mib, least in SHARES
        for sealed in BESIDE
    ),
    Requirement(
        "long-64-cold",
        "100 Mbit/s, 100 ms, 64 MiB each way, after 20 s without traffic: at least 85 %",
        f"{COLD} --mib 64",
        share(0.85),
    ),
    Requirement(
        "long-64-first",
        "the same, the first over new connections: at least 85 %",
        f"{COLD} --mib 64",
        first_share(0.85),
    ),
    Requirement(
        "long-16-cold",
        "the same with 16 MiB, after 20 s without traffic: at least 65 %",
        f"{COLD} --mib 16",
        share(0.65),
    ),
    Requirement(
        "long-16-first",
        "the same, the first over new connections: at least 65 %",
        f"{COLD} --mib 16",
        first_share(0.65),
    ),
    Requirement(
        "long-16-warm",
        "16 MiB, a round in the last second: at least 80 %",
        f"{LONG} --mib 16 --warmup 2 --rounds 15",
        share(0.8, pause_max_s=1.0),
    ),
    Requirement(
        "loss-bbr",
        "64 MiB with 1 % of packets lost, bbr: at least 50 %",
        f"{LONG} --loss 1% --congestion bbr --mib 64 --warmup 1",
        share(0.5),
    ),
    Requirement(
        "loss-cubic",
        "1 % lost, cubic: time over that of one TCP connection, at most 0.20",
        f"{LONG.replace('none', 'tcp')} --loss 1% --congestion cubic --mib 32 --warmup 1 --rounds 1"
        " --deadline 600s",
        ratio(0.2),
    ),
    Requirement(
        "int8-exact",
        "int8, 2 peers: at most 1.02 bytes an element, rms error 0.0072, mean error below 1e-5",
        f"{INT8} --peers 2 --mib 64",
        int8_exact,
    ),
    *(
        Requirement(
            f"int8-{peers}{_name(sealed)}",
            f"int8, {peers} peers, loopback{_words(sealed)}: at most {most} times our fp32",
            f"{INT8}{sealed} --peers {peers} --mib 64",
            ratio(most),
        )
        for peers, most in ((2, 1.8), (4, 1.25))
        for sealed in BESIDE
    ),
    Requirement(
        "codec-int8",
        "int8, one thread, GB/s of fp32: encode 3.5, decode 8",
        CODECS,
        speed("int8", encode=3.5, decode=8.0),
    ),
    Requirement(
        "codec-fp4", "fp4: encode 1.8, decode 6", CODECS, speed("fp4", encode=1.8, decode=6.0)
    ),
    Requirement(
        "blocked",
        "training is blocked by handing over and taking back 16 MiB: at most 3 ms",
        "exchange --against none --mib 16",
        blocked,
    ),
    Requirement(
        "blocked-encrypted",
        "the same, over encrypted links",
        "exchange --against none --encrypted --mib 16",
        blocked,
    ),
    Requirement(
        "lag",
        "256 MiB reduced, encrypted: the loop's lag p99 at most 10 ms",
        LAG,
        lag,
    ),
    Requirement(
        "heartbeats",
        "the same: heartbeats late by at most 50 ms",
        LAG,
        heartbeats,
    ),
    *(
        Requirement(
            f"memory-{codec}{_name(sealed)}",
            f"a peer's memory beyond its outer state, {codec}{_words(sealed)}: at most {most:.0f} "
            "fragments",
            f"memory --mib 64 --codec {codec}{sealed}",
            memory(most),
        )
        for codec, most in (("fp32", 4.0), ("int8", 3.0))
        for sealed in BESIDE
    ),
    Requirement(
        "memory-growth",
        "from the 10th to the 500th round: under 2 %",
        "memory --mib 4 --rounds 500",
        lambda told: (f"{told['growth']:+.2%}", told["growth"] < 0.02),
    ),
    *(
        Requirement(
            f"gloo-{peers}-{mib}",
            f"{mib} MiB fp32, {peers} peers, over gloo's median: at most {most:.2f}; CPU 0.80",
            f"{GLOO} --peers {peers} --mib {mib}",
            ratio(most, cpu=0.8),
        )
        for peers, mib, most in ((2, 64, 0.55), (4, 64, 0.8), (2, 256, 0.55), (4, 256, 0.8))
    ),
    *(
        Requirement(
            f"gloo-reno-{peers}-{mib}",
            f"{mib} MiB fp32, {peers} peers, both on reno, over gloo's median: at most {most:.2f}",
            f"{GLOO} --congestion reno --peers {peers} --mib {mib}",
            ratio(most),
        )
        for peers, most in ((2, 0.9), (4, 0.95))
        for mib in (64, 256)
    ),
    *(
        Requirement(
            f"encrypted-{peers}-{mib}",
            f"{mib} MiB fp32, {peers} peers, encrypted over in the clear: at most {most}",
            f"{SEALED} --peers {peers} --mib {mib}",
            ratio(most),
        )
        for peers, most in ((2, 1.7), (4, 1.6))
        for mib in (64, 256)
    ),
    Requirement(
        "encrypted-4-gloo",
        "64 MiB fp32, 4 peers, encrypted over gloo in the clear: at most 1.0",
        f"{SEALED} --peers 4 --mib 64",
        ratio(1.0, over=2),
    ),
    *(
        Requirement(
            f"step-{peers}{_name(sealed)}",
            f"4 KiB per step, {peers} peers{_words(sealed)}, from payload to mean: p50 at most "
            f"{p50_ms} ms, p99 {p99_ms:.0f} ms",
            f"steps --peers {peers} --kib 4{sealed}",
            step(p50_ms=p50_ms, p99_ms=p99_ms),
        )
        for peers, p50_ms, p99_ms in ((2, 0.4, 2.0), (4, 1.0, 4.0))
        for sealed in BESIDE
    ),
    Requirement(
        "join",
        "a 64 MiB joiner, from connection to verified state: at most 0.5 s",
        JOINING,
        joiner,
    ),
    Requirement("join-encrypted", "the same, encrypted", f"{JOINING} --encrypted", joiner),
    Requirement(
        "join-rounds",
        "the members' rounds meanwhile, with 0.5 s of rest in place of training: at most 1.2 times "
        "as long",
        JOINING,
        slowed("period_ratio"),
    ),
    Requirement(
        "join-exchanges",
        "their exchanges alone, with the joiner on the same cores: at most 1.2 times",
        JOINING,
        slowed("ratio"),
    ),
    Requirement(
        "others",
        "beside gloo, torchft and hivemind, 2 peers, 16 MiB: the fastest",
        "exchange --mib 16 --against gloo,torchft,hivemind",
        others,
    ),
)
