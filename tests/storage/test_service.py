"""What the clients of object stores say becomes one line without secrets; their words below are recorded from Arrow 25."""

import pytest

from rft_core.errors import UserError
from rft_core.storage.service import Service, hidden

GOOGLE = (
    "google::cloud::Status({code}: Retry policy exhausted, with a last message of {reason} "
    "error_info={{reason=, domain=, metadata={{gcloud-cpp.retry.function=GetBucketMetadata}}}})"
)
AZURE = "GetProperties for 'http://127.0.0.1:1/acc/buck?sig=sssecret&sv=1' failed. Azure Error: [{code}] {reason}"


def line(error: Exception, **options: str) -> str:
    service = Service("x://bucket/run", "x://bucket", "host:1", "KEY", hidden(options))
    problem = service.problem("write", "segments/a", error)
    assert isinstance(problem, UserError)
    assert "\n" not in str(problem)
    assert "sssecret" not in str(problem)
    return str(problem)


REFUSED = "access to x://bucket at host:1 is refused"
UNREACHED = "host:1 does not answer for x://bucket"
MISSING = "there is no bucket x://bucket at host:1; make it, or name one that is there"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (GOOGLE.format(code="UNAVAILABLE", reason="PerformWork() - CURL error [7]=Could not connect to server"), UNREACHED),
        (GOOGLE.format(code="UNAVAILABLE", reason="Could not create a OAuth2 access token to authenticate the request."), REFUSED),
        (GOOGLE.format(code="NOT_FOUND", reason="Received HTTP status code: 404"), MISSING),
        (AZURE.format(code="", reason="Fail to get a new connection for: http://127.0.0.1:1. Could not connect to server"), UNREACHED),
        (AZURE.format(code="AuthenticationFailed", reason="Server failed to authenticate the request."), REFUSED),
        (AZURE.format(code="ContainerNotFound", reason="The specified container does not exist."), MISSING),
        ("When x: AWS Error UNKNOWN (HTTP status 400) during HeadBucket operation: No response body.", REFUSED),
        ("When x: AWS Error NO_SUCH_BUCKET during PutObject operation: It does not exist (Request ID: LduTT6)", MISSING),
        ("first line\nsecond line", "can't write x://bucket/run/segments/a (first line); see what the store says of it"),
    ],
)
def test_an_error_is_told_by_what_puts_it_right(said: str, told: str) -> None:
    assert line(OSError(said)).startswith(told)


@pytest.mark.parametrize(("error", "told"), [(PermissionError, REFUSED), (ConnectionRefusedError, UNREACHED), (TimeoutError, UNREACHED)])
def test_an_error_is_told_by_its_type(error: type[OSError], told: str) -> None:
    assert line(error("no")) == f"{told} (no); " + (
        "set KEY" if told == REFUSED else "see that it runs, and that this machine can reach it"
    )


def test_values_of_options_are_not_shown_unless_they_are_harmless() -> None:
    options = {"password": "sssecret", "region": "eu-west-3", "port": "22"}
    assert "(*** in eu-west-3 at 22)" in line(OSError("sssecret in eu-west-3 at 22"), **options)
    assert "sssecret" not in repr(Service("x://b", "x://b", "h", "KEY", hidden(options)))
