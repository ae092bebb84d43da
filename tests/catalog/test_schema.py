"""The tables: every text can be stored, and the views are what is said of them."""

import pytest
from sqlalchemy import String, inspect

from rft_core.catalog import Catalog, schema


@pytest.mark.parametrize(
    ("text", "kept"),
    [("plain", "plain"), ("", ""), ("æ😀", "æ😀"), ("a\x00b", "a\\x00b"), ("\ud800", "\\ud800"), ("\udcff\x00", "\\udcff\\x00")],
)
def test_any_text_becomes_one_that_can_be_stored(text: str, kept: str) -> None:
    assert schema.storable(text) == kept == schema.storable(kept)


def test_every_text_column_takes_any_text() -> None:
    columns = [column for table in schema.metadata.tables.values() for column in table.columns]
    texts = [column for column in columns if column.type.python_type is str]
    assert texts
    assert all(isinstance(column.type, schema.AnyText) for column in texts)
    assert not any(isinstance(column.type, String) for column in columns)


def test_the_columns_of_the_views_are_known(catalog: Catalog) -> None:
    with catalog._database.read() as connection:
        found = {
            view: [column["name"] for column in inspect(connection).get_columns(view)] for view in inspect(connection).get_view_names()
        }
    assert found == {view: list(columns) for view, columns in schema.VIEW_COLUMNS.items()}
    assert set(schema.VIEWS) == set(schema.VIEW_COLUMNS)
