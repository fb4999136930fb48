"""A hospital's folder in a federation that others run: only its site.toml decides."""

from pathlib import Path

import pytest
from parties import SITES, make

from harmofl.deployment.checking import check_kit
from harmofl.deployment.guests import make_guest
from harmofl.deployment.kits import ELSEWHERE, SiteKit
from harmofl.deployment.party import start_party
from harmofl.errors import UsageError


def test_its_folder_holds_its_settings_and_no_key(tmp_path: Path) -> None:
    make_guest(tmp_path / "site", "Aachen", ["segmentation"])
    assert [path.name for path in (tmp_path / "site").iterdir()] == ["site.toml"]
    assert (tmp_path / "site").stat().st_mode & 0o077 == 0
    kit = SiteKit.open(tmp_path / "site")
    assert (kit.name, kit.federation.engine, kit.federation.sites) == ("Aachen", ELSEWHERE, ["Aachen"])
    assert kit.settings.policy.approval == "ask"


def test_its_settings_are_those_of_a_kit(tmp_path: Path) -> None:
    make_guest(tmp_path / "site", SITES[0], ["histology"], synthetic=True)
    made = SiteKit.open(make(tmp_path / "kits") / "sites" / SITES[0])
    assert SiteKit.open(tmp_path / "site").settings == made.settings


def test_everything_but_the_way_to_the_server_is_checked(tmp_path: Path) -> None:
    make_guest(tmp_path / "site", SITES[0], ["histology"], synthetic=True)
    findings = list(check_kit(tmp_path / "site"))
    assert all(finding.ok for finding in findings)
    told = " ".join(finding.what for finding in findings)
    assert f"site {SITES[0]} of a federation that others run" in told
    assert "synthetic images of hospital-0" in told
    (tmp_path / "site" / "audit.jsonl").write_text("no entry\n")
    assert [finding.ok for finding in check_kit(tmp_path / "site")].count(False) == 1


def test_it_is_not_started_by_us(tmp_path: Path) -> None:
    make_guest(tmp_path / "site", SITES[0], ["histology"], synthetic=True)
    with pytest.raises(UsageError, match=r"the federation's own engine brings messages"):
        start_party(tmp_path / "site")


@pytest.mark.parametrize("name", ["../evil", "", "a b"])
def test_a_wrong_name_makes_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="site"):
        make_guest(tmp_path / "site", name, ["segmentation"])
    assert list(tmp_path.iterdir()) == []
