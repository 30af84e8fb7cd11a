"""What commands print, with figures that meet some bars and miss others."""

from typing import Any

from benchmarks.asked import BARS

RESULT = {
    "system": "lowcomm",
    "codec": "fp32",
    "error": "",
    "median_s": 0.5,
    "cpu_s": 0.75,
    "wire_bytes": 2_120_000,
    "rms_error": 0.00695,
    "mean_error": -4e-9,
    "payload_share": 0.7,
    "data_path_share": 0.84,
    "first_share": 0.6,
    "copy_in_s": 0.002,
    "copy_out_s": 0.0015,
    "lag_p99_s": 0.004,
    "lag_max_s": 0.03,
    "busy_lag_p99_s": 0.011,
    "bit_identical": True,
    "pause_max_s": 0.75,
    "heartbeat_late_max_s": 0.051,
    "encode_gb_s": 4.0,
    "decode_gb_s": 9.0,
}
GLOO = {**RESULT, "system": "gloo", "median_s": 0.4, "cpu_s": 0.25}
TOLD: dict[str, Any] = {
    "machine": {"load_1min": 0.5, "stolen_s": 0.01},
    "peers": 2,
    "mib": 4,
    "results": [RESULT, {**RESULT, "codec": "int8", "median_s": 4.0}, GLOO],
    "fragments": 3.5,
    "growth": 0.001,
    "joins": 9,
    "donors_used": 3,
    "connection_to_verified_s": 0.3,
    "connection_to_verified_max_s": 0.6,
    "period_ratio": 1.09,
    "ratio": 2.1,
}
BY_NAME = {one.name: one for one in BARS}
