"""pip gets the package index that uv is configured with, unless pip has its own variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.config.package_index import make_pip_environment

UV_TOML = """
[[index]]
name = "corp"
url = "https://corp/simple"
default = true

[[index]]
url = "https://extra/simple"

[[index]]
name = "special"
url = "https://special/simple"
explicit = true
"""


@pytest.mark.parametrize(
    ("environment", "uv_toml", "expected"),
    [
        ({}, "", {}),
        ({"UV_INDEX_URL": "https://a/simple"}, "", {"PIP_INDEX_URL": "https://a/simple"}),
        ({"UV_DEFAULT_INDEX": "n=https://a/?x=1"}, "", {"PIP_INDEX_URL": "https://a/?x=1"}),
        (
            {"UV_DEFAULT_INDEX": "https://a/", "PIP_INDEX_URL": "https://b/"},
            "",
            {"PIP_INDEX_URL": "https://b/"},
        ),
        (
            {"UV_INDEX": "x=https://x/ https://y/", "UV_EXTRA_INDEX_URL": "https://z/ https://y/"},
            "",
            {"PIP_EXTRA_INDEX_URL": "https://x/ https://y/ https://z/"},
        ),
        (
            {
                "UV_INDEX": "my-corp=https://x/simple",
                "UV_INDEX_MY_CORP_USERNAME": "me",
                "UV_INDEX_MY_CORP_PASSWORD": "a/b@c",
            },
            "",
            {"PIP_EXTRA_INDEX_URL": "https://me:a%2Fb%40c@x/simple"},
        ),
        (
            {},
            UV_TOML,
            {
                "PIP_INDEX_URL": "https://corp/simple",
                "PIP_EXTRA_INDEX_URL": "https://extra/simple",
            },
        ),
        (
            {"UV_DEFAULT_INDEX": "https://a/"},
            UV_TOML,
            {"PIP_INDEX_URL": "https://a/", "PIP_EXTRA_INDEX_URL": "https://extra/simple"},
        ),
        ({"UV_NO_CONFIG": "1"}, UV_TOML, {}),
        ({}, '[pip]\nindex-url = "https://p/"', {"PIP_INDEX_URL": "https://p/"}),
        ({}, 'index-url = "https://p/"\nindex = 3', {"PIP_INDEX_URL": "https://p/"}),
        ({}, "not toml", {}),
        ({"UV_FIND_LINKS": "/a,/b"}, "", {"PIP_FIND_LINKS": "/a /b"}),
        ({"SSL_CERT_FILE": "/c.pem"}, "", {"PIP_CERT": "/c.pem"}),
        ({"SSL_CERT_FILE": "/c.pem", "REQUESTS_CA_BUNDLE": "/r.pem"}, "", {}),
    ],
)
def test_settings_of_uv_become_variables_of_pip(
    environment: dict[str, str], uv_toml: str, expected: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "uv").mkdir()
    (tmp_path / "uv" / "uv.toml").write_text(uv_toml)
    places = {"XDG_CONFIG_HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path / "none")}
    result = make_pip_environment(places | environment)
    assert {name: value for name, value in result.items() if name.startswith("PIP_")} == expected
    assert result.items() >= environment.items()
