"""A site's rules hold whatever the server asks, and the masks of all sites cancel."""

import json
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from exchanges import MODEL, exchange, masked, revealed, signed, sites, total_of, up_to_shares
from hypothesis import given, settings
from hypothesis import strategies as st

from harmofl.federation.secure.fixed_point import decode, encode, is_plausible
from harmofl.federation.secure.keys import KeyPair, make_signing_keys, sign
from harmofl.federation.secure.masking import take_self_masks
from harmofl.federation.secure.roster import Advert, prove, threshold_of
from harmofl.federation.secure.session import FILE, SiteExchange
from harmofl.federation.secure.unmasking import Unmasking

NAMES = ["A", "B", "C", "D"]
VALUES = {name: torch.tensor([float(place), 0.25 * place]) for place, name in enumerate(NAMES, start=1)}
FIRST = exchange()


def reveal(parties: Mapping[str, SiteExchange], survivors: Sequence[str]) -> dict[str, dict[str, str]]:
    return revealed(parties, survivors, FIRST)


@given(st.integers(3, 7), st.data())
@settings(max_examples=12, deadline=None)
def test_masks_cancel_for_every_set_of_survivors_above_the_threshold(count: int, data: st.DataObject) -> None:
    names = [f"site-{number}" for number in range(count)]
    survivors = sorted(data.draw(st.sets(st.sampled_from(names), min_size=threshold_of(count))))
    numbers = st.lists(st.integers(-(2**20), 2**20), min_size=5, max_size=5)
    values = {name: torch.tensor(data.draw(numbers)).double() / 2**10 for name in names}
    with TemporaryDirectory() as folder:
        parties = sites(Path(folder), names)
        unmasking, rows = masked(parties, values, FIRST)
        total = total_of(rows, survivors)
        unmasking.take_masks(total, names, survivors, reveal(parties, survivors), MODEL)
        assert torch.equal(decode(total), torch.stack([values[name] for name in survivors]).sum(dim=0))


def test_a_sum_worked_by_hand_with_one_dropout(tmp_path: Path) -> None:
    parties = sites(tmp_path, NAMES)
    unmasking, rows = masked(parties, VALUES, FIRST)
    total = total_of(rows, ["A", "B", "D"])  # C is gone in mid-round
    unmasking.take_masks(total, NAMES, ["A", "B", "D"], reveal(parties, ["A", "B", "D"]), MODEL)
    assert decode(total).tolist() == [1 + 2 + 4, 0.25 * (1 + 2 + 4)]


def test_a_site_that_dropped_before_the_shares_leaves_no_mask(tmp_path: Path) -> None:
    parties = sites(tmp_path, NAMES)
    unmasking, received = up_to_shares(parties, FIRST)
    members = ["A", "B", "C"]  # the shares of D never came
    rows = {name: encode(VALUES[name], 4) for name in members}
    for name in members:
        shares = {sender: sealed for sender, sealed in received[name].items() if sender != "D"}
        parties[name].mask(FIRST, shares, MODEL, rows[name])
    total = total_of(rows, members)
    unmasking.take_masks(total, members, members, reveal(parties, members), MODEL)
    assert decode(total).tolist() == [6.0, 1.5]


def test_masked_numbers_are_noise_and_fewer_shares_than_the_threshold_unmask_nothing(tmp_path: Path) -> None:
    parties, zeros = sites(tmp_path, NAMES), {name: torch.zeros(1000) for name in NAMES}
    unmasking, rows = masked(parties, zeros, FIRST)
    for row in rows.values():
        ones = np.unpackbits(row.view(np.uint8)).mean()
        assert 0.49 < ones < 0.51  # 64,000 fair coins: eight standard deviations are 0.016
    told = reveal(parties, NAMES)
    two = {name: told[name] for name in NAMES[:2]}
    with pytest.raises(ValueError, match="2 shares: 3 are needed, for the secret of A"):
        unmasking.take_masks(total_of(rows, NAMES), NAMES, NAMES, two, MODEL)


def test_a_site_never_tells_both_shares_of_another_one(tmp_path: Path) -> None:
    parties = sites(tmp_path, NAMES)
    masked(parties, VALUES, FIRST)
    signatures = signed(parties, ["A", "B", "C"], FIRST)
    told = parties["A"].unmask(FIRST, ["A", "B", "C"], signatures)
    assert parties["A"].unmask(FIRST, ["C", "B", "A"], signatures) == told  # the same again, if the answer was lost
    for others in ([*NAMES], ["A", "B", "D"], ["A", "C", "D"]):
        with pytest.raises(ValueError, match="never both shares"):
            parties["A"].confirm(FIRST, others)
        with pytest.raises(ValueError, match="never both shares"):
            parties["A"].unmask(FIRST, others, signatures)
    restarted = SiteExchange("A", 10, tmp_path / "A")
    with pytest.raises(ValueError, match="never both shares"):
        restarted.confirm(FIRST, NAMES)
    assert restarted.unmask(FIRST, ["A", "B", "C"], signatures) == told


# --- one list of survivors for all ---------------------------------------------------------------------------------


def confirm_each(parties: Mapping[str, SiteExchange], lists: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """What a lying server collects: every site's signature below the list that it was told."""
    return {name: parties[name].confirm(FIRST, list(told))["signature"] for name, told in lists.items()}


def test_a_server_that_tells_two_sites_different_lists_gets_nothing(tmp_path: Path) -> None:
    parties = sites(tmp_path, NAMES)
    masked(parties, VALUES, FIRST)
    without_d = ["A", "B", "C"]
    lists = {"A": without_d, "B": without_d, "C": NAMES, "D": NAMES}
    signatures = confirm_each(parties, lists)
    for name, told in lists.items():
        with pytest.raises(ValueError, match="2 sites have signed this list of survivors, 3 must"):
            parties[name].unmask(FIRST, told, signatures)
        assert json.loads((tmp_path / name / FILE).read_text())["session"]["seed"]  # nothing has been unmasked


def test_signatures_do_not_serve_another_list_or_name_and_only_those_of_survivors_count(tmp_path: Path) -> None:
    parties = sites(tmp_path, NAMES)
    masked(parties, VALUES, FIRST)
    good = signed(parties, ["A", "B", "C"], FIRST)
    with pytest.raises(ValueError, match="has not been asked to sign"):
        parties["D"].unmask(FIRST, NAMES, good)
    stranger = make_signing_keys()
    for bad in (good["B"], sign(stranger.private, b"A, B, C").hex(), "00", "not hex", 1, None):
        with pytest.raises(ValueError, match="2 sites have signed"):
            parties["A"].unmask(FIRST, ["A", "B", "C"], good | {"C": bad})
    for nothing in (None, {}, [], "A"):
        with pytest.raises(ValueError, match="0 sites have signed"):
            parties["A"].unmask(FIRST, ["A", "B", "C"], nothing)
    dropped = {"D": parties["D"].confirm(FIRST, NAMES)["signature"]}
    with pytest.raises(ValueError, match="2 sites have signed"):
        parties["A"].unmask(FIRST, ["A", "B", "C"], {name: good[name] for name in ("A", "B")} | dropped)
    assert parties["A"].unmask(FIRST, ["A", "B", "C"], good).keys() == set(NAMES)


def test_without_signatures_a_lying_server_would_sum_four_sites_of_ten_where_six_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the six others is missing in six lists, so that its key could be put together; the four are in all."""
    four, six = ["a", "b", "c", "d"], ["p", "q", "r", "s", "t", "u"]
    pairs = [(six[place], six[(place + 1) % 6]) for place in range(6)]
    lists = {one: [*four, one, other] for one, other in pairs}
    lists |= dict(zip(four, ([*four, *pair] for pair in (pairs[0], pairs[2], pairs[4], pairs[0])), strict=True))
    parties = sites(tmp_path, [*four, *six])
    values = {name: torch.tensor([2.0**place]) for place, name in enumerate([*four, *six])}
    unmasking, rows = masked(parties, values, FIRST)
    signatures = confirm_each(parties, lists)
    for name, told in lists.items():
        with pytest.raises(ValueError, match="sites have signed this list of survivors, 6 must"):
            parties[name].unmask(FIRST, told, signatures)

    monkeypatch.setattr(SiteExchange, "_check_signatures", lambda *_: None)
    shares = {name: parties[name].unmask(FIRST, told, {}) for name, told in lists.items()}
    whole = Unmasking._join

    def join_what_fits(self: Unmasking, member: str, told: Mapping[str, Mapping[str, str]]) -> bytes:
        """From the sites that were told what gives the secret that the server wants."""
        return whole(self, member, {name: told[name] for name in told if (member in lists[name]) == (member in four)})

    monkeypatch.setattr(Unmasking, "_join", join_what_fits)
    total = total_of(rows, four)
    unmasking.take_masks(total, [*four, *six], four, shares, MODEL)
    assert decode(total).tolist() == [1 + 2 + 4 + 8]


@pytest.mark.parametrize("count", range(3, 12))
def test_one_hostile_site_that_signs_every_list_does_not_bring_two_lists_above_the_threshold(count: int) -> None:
    threshold = threshold_of(count)
    assert threshold <= count
    for told_one in range(count):
        told_other = count - 1 - told_one  # of all but the hostile one; each signs a single list
        assert min(told_one + 1, told_other + 1) < threshold


def test_a_lying_server_with_a_hostile_site_does_not_unmask_another_one(tmp_path: Path) -> None:
    """D signs whatever helps; the others have to be told that A dropped out and that it did not."""
    parties = sites(tmp_path, NAMES)
    unmasking, _ = masked(parties, VALUES, FIRST)
    lists = {"A": NAMES, "B": NAMES, "C": ["B", "C", "D"]}
    signatures = confirm_each(parties, lists)
    session = json.loads((tmp_path / "D" / FILE).read_text())["session"]

    def with_hostile(told: Sequence[str]) -> dict[str, str]:
        statement = unmasking.roster.statement(bytes.fromhex(session["context"]), told)
        return signatures | {"D": sign(bytes.fromhex(session["sign_key"]), statement).hex()}

    for name in ("A", "B"):  # the mask of A, as three have signed
        assert parties[name].unmask(FIRST, NAMES, with_hostile(NAMES)).keys() == set(NAMES)
    with pytest.raises(ValueError, match="2 sites have signed this list of survivors, 3 must"):
        parties["C"].unmask(FIRST, lists["C"], with_hostile(lists["C"]))  # and so never its key


# --- what a site refuses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("survivors", [["A", "B"], ["A"], [], ["A", "A", "A"]])
def test_a_site_does_not_unmask_for_fewer_sites_than_the_threshold(tmp_path: Path, survivors: list[str]) -> None:
    parties = sites(tmp_path, NAMES)
    masked(parties, VALUES, FIRST)
    with pytest.raises(ValueError, match=r"it is unmasked from 3 on|this one among them"):
        parties["A"].confirm(FIRST, survivors)


def test_a_site_does_not_unmask_for_fewer_sites_than_make_a_round(tmp_path: Path) -> None:
    parties = {name: SiteExchange(name, 10, tmp_path / name, fewest=4) for name in NAMES}
    masked(parties, VALUES, FIRST)
    with pytest.raises(ValueError, match="3 sites are in the sum: it is unmasked from 4 on"):
        parties["A"].confirm(FIRST, NAMES[:3])
    assert reveal(parties, NAMES)


@pytest.mark.parametrize("survivors", [["B", "C", "D"], ["A", "B", "C", "stranger"], "ABC", [1, 2, 3], None])
def test_survivors_must_be_sites_that_took_part(tmp_path: Path, survivors: object) -> None:
    parties = sites(tmp_path, NAMES)
    masked(parties, VALUES, FIRST)
    with pytest.raises(ValueError, match="survivors must be"):
        parties["A"].confirm(FIRST, survivors)


def test_a_round_that_is_repeated_is_summed_over_the_same_sites_only(tmp_path: Path) -> None:
    parties, again = sites(tmp_path, NAMES), exchange(session="second")
    masked(parties, VALUES, FIRST)
    reveal(parties, NAMES)
    masked(parties, VALUES, again)
    with pytest.raises(ValueError, match="round 1 has been summed over other sites before"):
        parties["A"].confirm(again, ["A", "B", "C"])
    assert revealed(parties, NAMES, again)["A"].keys() == set(NAMES)
    following = exchange(2, "third")
    masked(parties, VALUES, following)
    assert revealed(parties, ["A", "B", "C"], following)["A"].keys() == set(NAMES)


def test_every_session_has_its_own_keys_and_the_last_ones_are_forgotten(tmp_path: Path) -> None:
    party = sites(tmp_path, ["A"])["A"]
    first = party.advertise(FIRST)
    assert party.advertise(FIRST) == first
    second = party.advertise(exchange(session="second"))
    assert second["mask_key"] != first["mask_key"]
    with pytest.raises(ValueError, match="have not been asked for"):
        party.share(FIRST, {})


def test_own_secrets_are_forgotten_once_the_sum_is_unmasked_and_only_the_owner_can_read_the_file(
    tmp_path: Path,
) -> None:
    parties = sites(tmp_path, NAMES)
    masked(parties, VALUES, FIRST)
    path = tmp_path / "A" / FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text())["session"]["seed"]
    reveal(parties, NAMES)
    session = json.loads(path.read_text())["session"]
    assert session["seed"] == session["mask_key"] == ""


def test_a_site_masks_one_set_of_numbers_in_a_session(tmp_path: Path) -> None:
    """Two sets below the same masks would tell their difference."""
    parties = sites(tmp_path, NAMES)
    _, received = up_to_shares(parties, FIRST)
    first, again, other = (encode(torch.tensor([number]), 4) for number in (1.0, 1.0, 2.0))
    parties["A"].mask(FIRST, received["A"], MODEL, first)
    parties["A"].mask(FIRST, received["A"], MODEL, again)
    assert first.tolist() == again.tolist()
    with pytest.raises(ValueError, match="masked other numbers"):
        parties["A"].mask(FIRST, received["A"], MODEL, other)
    with pytest.raises(ValueError, match="masked other numbers"):
        parties["A"].mask(FIRST, received["A"], "another model", encode(torch.tensor([1.0]), 4))


def test_sites_that_received_different_models_give_noise_and_do_not_unmask_for_each_other(tmp_path: Path) -> None:
    parties = sites(tmp_path, NAMES)
    unmasking, received = up_to_shares(parties, FIRST)
    rows = {name: encode(torch.ones(100), 4) for name in NAMES}
    for name, party in parties.items():
        party.mask(FIRST, received[name], "crafted" if name == "A" else MODEL, rows[name])
    signatures = signed(parties, NAMES, FIRST)
    with pytest.raises(ValueError, match="1 sites have signed this list"):
        parties["A"].unmask(FIRST, NAMES, signatures)
    told = {name: parties[name].unmask(FIRST, NAMES, signatures) for name in ("B", "C", "D")}
    total = total_of(rows, NAMES)
    unmasking.take_masks(total, NAMES, NAMES, told, MODEL)
    assert not is_plausible(decode(total))


def test_a_restarted_process_goes_on_in_mid_round(tmp_path: Path) -> None:
    def restarted() -> dict[str, SiteExchange]:
        return sites(tmp_path, NAMES)

    unmasking, received = up_to_shares(restarted(), FIRST)
    rows = {name: encode(VALUES[name], 4) for name in NAMES}
    for name in NAMES:
        restarted()[name].mask(FIRST, received[name], MODEL, rows[name])
    total = total_of(rows, NAMES)
    unmasking.take_masks(total, NAMES, NAMES, reveal(restarted(), NAMES), MODEL)
    assert decode(total).tolist() == [10.0, 2.5]


def test_wrong_shares_of_a_key_are_noticed(tmp_path: Path) -> None:
    parties = sites(tmp_path, NAMES)
    unmasking, rows = masked(parties, VALUES, FIRST)
    told = reveal(parties, ["A", "B", "C"])
    told["A"]["D"] = told["B"]["D"]
    with pytest.raises(ValueError, match="do not belong together"):
        unmasking.take_masks(total_of(rows, ["A", "B", "C"]), NAMES, ["A", "B", "C"], told, MODEL)


def test_shares_that_were_changed_on_their_way_are_refused(tmp_path: Path) -> None:
    parties = sites(tmp_path, NAMES)
    _, received = up_to_shares(parties, FIRST)
    for bad in (received["A"]["C"], "00" * 94, "not hex", ""):
        shares = received["A"] | {"B": bad}
        with pytest.raises(ValueError, match="the shares of B cannot be read"):
            parties["A"].mask(FIRST, shares, MODEL, encode(VALUES["A"], 4))


def test_the_list_of_sites_must_have_the_sites_own_keys_and_at_least_three_sites(tmp_path: Path) -> None:
    parties = sites(tmp_path, NAMES)
    adverts = {name: party.advertise(FIRST) for name, party in parties.items()}
    forged = adverts["A"] | {"mask_key": KeyPair.make().public.hex()}
    with pytest.raises(ValueError, match="does not have the public keys of this site"):
        parties["A"].share(FIRST, adverts | {"A": forged})
    with pytest.raises(ValueError, match="fewer than 3 sites"):
        parties["A"].share(FIRST, {name: adverts[name] for name in NAMES[:2]})
    with pytest.raises(ValueError, match="two public keys are the same"):
        parties["A"].share(FIRST, adverts | {"D": adverts["C"]})
    parties["A"].share(FIRST, adverts)
    with pytest.raises(ValueError, match="has changed within a round"):
        parties["A"].share(FIRST, {name: adverts[name] for name in NAMES[:3]})


@pytest.mark.parametrize("bad", [None, {}, {"mask_key": 1}, [], "keys"])
def test_what_is_no_advert_is_refused(tmp_path: Path, bad: object) -> None:
    parties = sites(tmp_path, NAMES)
    adverts: dict[str, object] = {name: party.advertise(FIRST) for name, party in parties.items()}
    with pytest.raises(ValueError, match="its public keys are missing"):
        parties["A"].share(FIRST, adverts | {"B": bad})


def test_with_a_key_of_the_consortium_a_server_cannot_put_its_own_keys_in(tmp_path: Path) -> None:
    key = b"a secret that sites have and the server has not"
    parties = sites(tmp_path, NAMES, key)
    adverts = {name: party.advertise(FIRST) for name, party in parties.items()}
    parties["A"].share(FIRST, adverts)
    stranger = SiteExchange("B", 10, tmp_path / "stranger", b"guessed").advertise(FIRST)
    more_images = adverts["B"] | {"num_examples": 10**6}
    of_another_round = parties["B"].advertise(exchange(2, "other"))
    for forged in (stranger, stranger | {"proof": ""}, more_images, of_another_round):
        with pytest.raises(ValueError, match="'B' are not from a site with the consortium's key"):
            parties["C"].share(FIRST, adverts | {"B": forged})


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    party = sites(tmp_path, ["A"])["A"]
    party.advertise(FIRST)
    for damaged in ("{", "[]", '{"session": {"exchange": {}}, "sums": {}}', '{"session": 1}'):
        (tmp_path / "A" / FILE).write_text(damaged)
        with pytest.raises(ValueError, match="what it remembers of secure sums is damaged"):
            party.advertise(FIRST)


def other_spelling(public: str) -> str:
    """The same X25519 key in other digits: the last bit means nothing (RFC 7748, section 5)."""
    return (bytes.fromhex(public)[:-1] + bytes([bytes.fromhex(public)[-1] ^ 0x80])).hex()


def test_a_hostile_site_that_repeats_anothers_key_does_not_make_masks_cancel(tmp_path: Path) -> None:
    """C tells the key of A as its own, so that B would add and subtract the same mask, and only its own one be left."""
    names, key = ["A", "B", "C"], b"a secret that the hostile site has, too"
    parties = sites(tmp_path, names, key)
    adverts = {name: party.advertise(FIRST) for name, party in parties.items()}
    hostile = Advert.read(adverts["C"] | {"mask_key": other_spelling(adverts["A"]["mask_key"])})
    told = vars(replace(hostile, proof=prove(hostile, FIRST, "C", key)))
    roster = adverts | {"C": told}
    path = tmp_path / "C" / FILE
    notes = json.loads(path.read_text())
    path.write_text(json.dumps({**notes, "session": notes["session"] | {"advert": told}}))
    made = {name: party.share(FIRST, roster) for name, party in parties.items()}
    row = encode(VALUES["B"], 3)
    parties["B"].mask(FIRST, {name: made[name]["B"] for name in ("A", "C")}, MODEL, row)
    session = json.loads((tmp_path / "B" / FILE).read_text())["session"]
    take_self_masks(row, {"B": bytes.fromhex(session["seed"])}, bytes.fromhex(session["context"]))  # as all would help
    assert not torch.equal(decode(row), VALUES["B"].double())
