"""docs/errata.md tells runs that the planted rules of the papers spoil."""

import pytest

from tests.docs.errata import ERRATA, PAGE, PICTURES, Erratum, find_run, render_run, slug, title

QUICK = ("an early acknowledgement is lost", "the clock stays behind")


@pytest.mark.parametrize("erratum", ERRATA, ids=[slug(erratum) for erratum in ERRATA])
def test_page_has_every_erratum_with_its_picture(erratum: Erratum) -> None:
    page = PAGE.read_text()
    assert f"## {title(erratum)}\n" in page
    assert erratum.printed in page
    assert (PICTURES / f"{slug(erratum)}.svg").read_text().startswith("<svg")


@pytest.mark.parametrize("erratum", [one for one in ERRATA if one.name in QUICK], ids=QUICK)
def test_page_is_what_the_search_finds(erratum: Erratum) -> None:
    section = "\n".join(render_run(find_run(erratum)))
    assert section in PAGE.read_text(), "run: python -m tests.docs.errata"
