import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendrun.errors import InputError
from blendrun.units import (
    format_bytes,
    format_count,
    format_difference,
    format_seconds,
    parse_bytes,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("512", 512),
        ("4GiB", 4 * 2**30),
        ("4g", 4 * 2**30),
        ("4GB", 4 * 10**9),
        (" 1.5 MiB ", 3 * 2**19),
        ("2tb", 2 * 10**12),
    ],
)
def test_sizes_are_read_in_binary_and_decimal_units(text: str, num_bytes: int):
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "0", "-4GiB", "4 bananas", "GiB", "nan", "1e9", "0.5"])
def test_what_is_no_size_is_refused_with_an_example(text: str):
    with pytest.raises(InputError, match="is not a size in bytes") as caught:
        parse_bytes(text)
    assert "4GiB" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("45m", 2700), ("3h", 10800), ("1h30m", 5400), (" 3h0m5s ", 10805)],
)
def test_durations_are_read_in_hours_minutes_and_seconds(text: str, seconds: float):
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "90", "-1h", "30m1h", "1.5h", "3 h", "soon"])
def test_what_is_no_duration_is_refused_with_an_example(text: str):
    with pytest.raises(InputError, match="is not a duration") as caught:
        parse_seconds(text)
    assert "1h30m" in str(caught.value.hint)


@given(st.integers(1, 2**60))
def test_plain_byte_counts_read_back(num_bytes: int):
    assert parse_bytes(str(num_bytes)) == pytest.approx(num_bytes)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**30, "1.0 GiB"), (2**41, "2.0 TiB")],
)
def test_bytes_are_printed_in_the_largest_unit_that_fits(num_bytes: int, text: str):
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (9_999, "9,999"), (12_345, "12.35 K"), (8.03e9, "8.03 G"), (2_500_000, "2.50 M")],
)
def test_counts_stay_exact_until_they_are_long(count: float, text: str):
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4242, "0.42 s"),
        (12.34, "12.3 s"),
        (245, "4 min 05 s"),
        (3 * 3600 + 12 * 60, "3 h 12 min"),
        (5 * 86400, "5.0 days"),
        (9.999, "10.0 s"),
        (59.97, "1 min 00 s"),
        (3599.7, "1 h 00 min"),
    ],
)
def test_durations_are_printed_as_people_read_them(seconds: float, text: str):
    assert format_seconds(seconds) == text
    assert format_seconds(-seconds) == f"-{text}"
    assert format_difference(seconds) == f"+{text}"
    assert format_difference(-seconds) == f"-{text}"


@pytest.mark.parametrize("seconds", [0.0, -0.0, 0.0049, -0.0049])
def test_what_is_printed_as_no_time_has_no_sign(seconds: float):
    assert format_seconds(seconds) == "0.00 s"
    assert format_difference(seconds) == "0.00 s"
