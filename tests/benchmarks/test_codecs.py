"""The benchmark of codecs says what it measured, and its errors are those of the codecs."""

import json

import pytest

from benchmarks.codecs import main, measure, table
from lowcomm.codecs import known_codecs
from protocols.types.errors import ConfigError

ELEMENTS = 1 << 15


def test_every_codec_is_measured() -> None:
    copy_gb_s, results = measure(known_codecs(), ELEMENTS, repeats=1)
    assert [result.codec for result in results] == list(known_codecs())
    for result in results:
        assert result.encode_gb_s > 0
        assert result.decode_gb_s > 0
    by_name = {result.codec: result for result in results}
    assert by_name["fp32"].rms_error == by_name["fp32"].two_peers_rms_error == 0
    assert by_name["int8"].bytes_per_element <= 1.02
    assert by_name["int8"].two_peers_rms_error <= 0.0072
    assert by_name["fp4"].result_codec == "bf16"
    assert by_name["topk"].result_codec == ""
    lines = table(results, copy_gb_s).splitlines()
    assert len(lines) == 4 + len(results)
    assert len({line.count("|") for line in lines[2:]}) == 1


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    main(mib=1, only="int8,fp32", repeats=1, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert [result["codec"] for result in told["results"]] == ["int8", "fp32"]
    assert told["machine"]["cores"] >= 1
    assert told["copy_gb_s"] > 0


def test_a_person_gets_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(mib=1, only="bf16", repeats=1, as_json=False)
    assert "| bf16 | 2.000 |" in capsys.readouterr().out


def test_an_unknown_codec_is_named_before_anything_is_measured() -> None:
    with pytest.raises(ConfigError, match="unknown codec 'int9'"):
        main(mib=1024, only="int8,int9", repeats=99, as_json=True)
