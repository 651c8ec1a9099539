from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuety.redaction import redact, redact_text

HARD = "p%40s:/?#[]@!%%(x)s"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://u:pw@h:5432/db", "postgresql://u:***@h:5432/db"),
        ("postgresql://u@h/db", "postgresql://u@h/db"),
        ("postgresql://h:5432/db", "postgresql://h:5432/db"),
        ("postgresql://u:a@b@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u@corp:pw@h/db", "postgresql://u@corp:***@h/db"),
        ("postgresql://u:pw@h1:1,h2:2/db?x=1", "postgresql://u:***@h1:1,h2:2/db?x=1"),
        ("postgresql://h/db?user=u&password=pw&x=1", "postgresql://h/db?user=u&password=***&x=1"),
        ("postgresql://h/db?sslpassword=pw", "postgresql://h/db?sslpassword=***"),
        ("postgresql+psycopg://:pw@h", "postgresql+psycopg://:***@h"),
        ("host=x password=pw dbname=d", "host=x password=*** dbname=d"),
        ("host=x password = 'p w\\' x' dbname=d", "host=x password = *** dbname=d"),
        (r"password=a\ b host=x", "password=*** host=x"),
        ("PASSWORD=pw", "PASSWORD=***"),
        ("host=x user=u", "host=x user=u"),
        ("", ""),
    ],
)
def test_the_password_of_a_connection_string_is_hidden(url, expected):
    assert redact(url) == expected


@pytest.mark.parametrize("password", [HARD, quote(HARD, safe="")])
def test_any_password_is_hidden_encoded_or_not(password):
    assert redact(f"postgresql://u:{password}@h/db") == "postgresql://u:***@h/db"


@given(st.text(min_size=1, max_size=30))
def test_no_password_survives_in_a_url(password):
    assert redact(f"postgresql://u:{quote(password, safe='')}@h/db") == "postgresql://u:***@h/db"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('cannot open "postgres://u:pw@h/db", giving up', 'cannot open "postgres://u:***@h/db", giving up'),
        ("postgresql+psycopg://u:p@w@h/db failed", "postgresql+psycopg://u:***@h/db failed"),
        ("postgresql://u:p w@h/db failed", "postgresql://u:***@h/db failed"),
        ("postgresql://h:5432/db, ask bob@x.org", "postgresql://h:5432/db, ask bob@x.org"),
        ("connect(password='pw', host=1)", "connect(password=***, host=1)"),
        ("https://example.org/a:b@c", "https://example.org/a:b@c"),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_passwords_inside_a_text_are_hidden(text, expected):
    assert redact_text(text) == expected
