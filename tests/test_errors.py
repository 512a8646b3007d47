import pytest

from blendrun import errors


@pytest.mark.parametrize(
    ("kind", "exit_code"),
    [
        (errors.InputError, 2),
        (errors.PlanError, 2),
        (errors.CapacityError, 2),
        (errors.DiskFullError, 1),
        (errors.TimeLimitError, 1),
        (errors.BackendError, 1),
    ],
)
def test_exit_code_tells_who_can_mend_it(kind: type[errors.BlendrunError], exit_code: int):
    assert kind("broken").exit_code == exit_code


def test_message_and_hint_are_kept_apart():
    error = errors.InputError("no such file", "check the path")
    assert (error.message, error.hint, str(error)) == (
        "no such file",
        "check the path",
        "no such file",
    )
    assert errors.InputError("no such file").hint is None


def test_one_except_clause_catches_them_all():
    with pytest.raises(errors.BlendrunError):
        raise errors.CapacityError("too small")
