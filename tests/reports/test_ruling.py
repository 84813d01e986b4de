"""The page of a ruling: well-formed, true to the ruling, safe against hostile names."""

import re
from dataclasses import replace

import pytest

from neuralmark.disputes import Party, Relation, Ruling, Shown
from neuralmark.disputes.parties import exhibit_of
from neuralmark.disputes.records import Case
from neuralmark.disputes.sightings import ABSENT, PRESENT, UNPROVEN, Presence, Sighting
from neuralmark.errors import DisputeError
from neuralmark.reports.ruling import ruling_page
from tests.support.pages import HOSTILE, read


def sighting(party: str, model: str, state: Presence, matched: int | None = 160) -> Sighting:
    if matched is None:
        return Sighting(party, exhibit_of(model), state, "nowhere to look")
    log2 = {PRESENT: -157.678, ABSENT: -1.5, UNPROVEN: -157.678}[state]
    reason = f"{matched} of 160 bits match, below 2^-128"
    where = exhibit_of(model)
    return Sighting(
        party, where, state, reason, matched, 160, 155, log2, 3, "names", ("layer.weight",)
    )


@pytest.fixture
def ruling() -> Ruling:
    parties = tuple(
        Party(
            name, f"nm1-{name}", f"commitment-{name}", "native", Shown(f"{name}.st", {name: "5e"})
        )
        for name in ("Acme", "Bandit")
    )
    return Ruling(
        owner="Acme",
        reasons=("Acme: its mark is present in everything", "Bandit: something is missing"),
        cautions=(),
        parties=(parties[0], replace(parties[1], stated_time="2024-05-01T00:00:00+00:00")),
        disputed=None,
        cases=(Case("Acme", ("all of it",), ()), Case("Bandit", (), ("something is missing",))),
        sightings=(
            sighting("Acme", "Acme", PRESENT),
            sighting("Acme", "Bandit", PRESENT, 158),
            sighting("Bandit", "Acme", ABSENT, None),
            sighting("Bandit", "Bandit", UNPROVEN, 159),
        ),
        relations=(Relation(exhibit_of("Acme"), exhibit_of("Bandit"), None, 0.9731, 3, 84480),),
        set_aside=(),
    )


def test_it_says_what_the_ruling_says(ruling: Ruling) -> None:
    page = ruling_page(ruling)
    text = read(page).text
    for words in (
        *("Owner: Acme", "This party alone satisfies the criterion", "158 of 160 bits"),
        *("no place for it", "0.973", "84,480", "too few", "nm1-Bandit", "commitment-Acme"),
        *("as stated, not checked", "2024-05-01T00:00:00+00:00", "Signature", "sha256"),
        *("missing: something is missing", "holds: all of it", "satisfies the criterion"),
    ):
        assert words in text, words
    assert "Cautions" not in text
    assert "2<sup>−157.67</sup>" in page
    assert page.count("2<sup>−157.67</sup>") == 2  # none for the unproven match


def test_undecided_and_set_aside(ruling: Ruling) -> None:
    nothing = Relation(exhibit_of("Bandit"), "the disputed model", None, None)
    seen = [replace(s, model="the disputed model") for s in ruling.sightings[:2]]
    seen[1] = replace(seen[1], party="Bandit")
    undecided = replace(
        ruling,
        owner=None,
        cautions=("have it examined",),
        set_aside=("Bandit",),
        disputed=Shown("disputed.st", {"disputed.st": "abcd"}),
        relations=(nothing,),
        sightings=(*ruling.sightings, *seen),
        parties=(ruling.parties[0], replace(ruling.parties[1], stated_time=None, key_kind="raw")),
    )
    text = read(ruling_page(undecided)).text
    for words in (
        *("Undecided", "No party satisfies", "Cautions", "have it examined"),
        *("the exhibit of Bandit was set aside", "nothing to compare", "unrelated"),
        *("disputed.st", "abcd", "a matrix made elsewhere", "Disputed model"),
    ):
        assert words in text, words
    assert "as stated" not in text


def test_hostile_names_stay_text(ruling: Ruling) -> None:
    sightings = tuple(
        replace(
            s,
            party=s.party.replace("Bandit", HOSTILE),
            model=s.model.replace("Bandit", HOSTILE),
            reason=HOSTILE,
            tensors=(HOSTILE,) * 7,
        )
        for s in ruling.sightings
    )
    party = Party(
        HOSTILE, HOSTILE, HOSTILE, "native", Shown(HOSTILE, {HOSTILE: HOSTILE}), "2024-01-01"
    )
    hostile = replace(
        ruling,
        owner=HOSTILE,
        parties=(ruling.parties[0], party),
        sightings=sightings,
        reasons=(HOSTILE,),
        cautions=(HOSTILE,),
        set_aside=(HOSTILE,),
        cases=(Case(HOSTILE, (HOSTILE,), (HOSTILE,)),),
        relations=(Relation(HOSTILE, HOSTILE, 0.5, 0.5),),
    )
    page = ruling_page(hostile)
    assert not {"script", "img"} & {tag for tag, _ in read(page).tags}
    assert "\u202e" not in page
    assert "and 2 more" in page


def test_it_fetches_nothing(ruling: Ruling) -> None:
    page = ruling_page(ruling)
    assert not re.search(r"(src|href)\s*=", page)
    assert "default-src 'none'" in page


def test_nobody_was_seen_nowhere(ruling: Ruling) -> None:
    assert ruling.sighting("Acme", exhibit_of("Bandit")).party == "Acme"
    for party, model in (("Nobody", exhibit_of("Acme")), ("Acme", "Acme")):
        with pytest.raises(DisputeError, match="does not tell of"):
            ruling.sighting(party, model)


def test_in_a_notebook(ruling: Ruling) -> None:
    shown = ruling._repr_html_()
    text = read(shown).text
    assert shown.count("<tr>") == 1 + len(ruling.parties) + len(ruling.reasons)
    assert "owner: Acme" in text
    for said in (*ruling.reasons, "exhibit of Bandit", "present (160 of 160 bits)"):
        assert said in text
    undecided = replace(ruling, owner=None, cautions=("mind the gap",), set_aside=("Bandit",))
    text = read(undecided._repr_html_()).text
    assert "undecided" in text
    assert "owner" not in text
    assert "mind the gap" in text
    assert "set asidethe exhibit of Bandit" in text


def test_hostile_names_stay_text_in_a_notebook(ruling: Ruling) -> None:
    acme = ruling.parties[0]
    seen = [
        replace(each, model=exhibit_of(HOSTILE), party=HOSTILE)
        for each in ruling.sightings
        if (each.party, each.model) == ("Acme", exhibit_of("Acme"))
    ]
    alone = replace(
        ruling,
        owner=HOSTILE,
        reasons=(HOSTILE,),
        parties=(replace(acme, name=HOSTILE),),
        sightings=tuple(seen),
    )
    reader = read(alone._repr_html_())
    assert {tag for tag, _ in reader.tags} == {"table", "caption", "b", "tr", "th", "td"}
    assert reader.text.count(HOSTILE) == 4
