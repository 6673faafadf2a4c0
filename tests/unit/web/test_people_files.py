"""FILE.toml, with people's permissions on the page."""

from pathlib import Path

import pytest

from standfast.cli.listening import access_of
from standfast.errors import InputError


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("[people.ada.lovelace]", r'a name with dots in quotes: \[people\."ada\.lovelace"\]'),
        ("[people.ada]\nrole = 'viewer'\nonly_owm = true", r"no setting is called 'only_owm'.* mean 'only_own'\?"),
        ("[persons.ada]", r"must have tables \[people\.NAME\] with role and token; it has 'persons'"),
        ("", r"must have tables \[people\.NAME\] with role and token; it has nothing"),
        ("people = 3", r"must have tables \[people\.NAME\] with role and token; it has 'people'"),
        ("[people]\nada = 1", r"under \[people\], ada is not a table"),
    ],
)
def test_a_wrong_file_is_refused_in_its_own_words(tmp_path: Path, written: str, says: str) -> None:
    path = tmp_path / "people.toml"
    path.write_text(written)
    with pytest.raises(InputError, match=says) as refused:
        access_of(str(path), None, False, None, (), print)
    assert "__init__" not in str(refused.value)


def test_a_quoted_name_may_have_dots(tmp_path: Path) -> None:
    path = tmp_path / "people.toml"
    path.write_text('[people."ada.lovelace"]\ntoken = "a token that is long enough"\n')
    (ada,) = access_of(str(path), None, False, None, (), lambda note: None).people
    assert ada.name == "ada.lovelace"
